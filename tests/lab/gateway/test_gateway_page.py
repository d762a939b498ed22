"""The gateway page: its sentences, its tables, and a page that escapes what gateways send."""

import pytest
from msgspec.structs import replace

from locust_llm.lab.gateway.cancel_delay import MIDSTREAM, CancelDelay
from locust_llm.lab.gateway.gateway_page import (
    describe_gateway,
    is_within,
    list_tables,
    render_gateway_page,
)
from locust_llm.lab.gateway.gateway_result import (
    FIRST_TOKEN,
    FURTHER_TOKEN,
    AddedLevel,
    AddedTime,
    GatewayResult,
    StreamChange,
)
from locust_llm.lab.gateway.gateway_text import format_gateway_table
from locust_llm.lab.gateway.headers_and_routing import (
    ADDED,
    PASSED,
    TO_CLIENT,
    TO_UPSTREAM,
    HeaderPassage,
    ReplicaDeath,
    SessionSpread,
)
from locust_llm.lab.gateway.hidden_failures import FaultVerdict


def level(streams: int, first_ms: float, further_ms: float) -> AddedLevel:
    """p99 is ten times p50."""
    pairs = ((FIRST_TOKEN, first_ms), (FURTHER_TOKEN, further_ms))
    return AddedLevel(
        streams=streams,
        added=tuple(
            AddedTime(quantity=quantity, samples=100, p50_ms=ms, p99_ms=10 * ms)
            for quantity, ms in pairs
        ),
    )


def fault(name: str, verdict: str, through: str = "", **other: object) -> FaultVerdict:
    known = {"mode": "streamed", "direct": "HTTP 500", "trials": 3, "agreed": 3, "requests": 1}
    return FaultVerdict(fault=name, verdict=verdict, through=through, **known | other)  # type: ignore[arg-type]


NGINX = GatewayResult(
    name="nginx",
    url="http://127.0.0.1:1",
    started="2026-11-26T22:00:00Z",
    version="1",
    levels=(level(1, 0.1, 0.05), level(2, 0.2, 0.1), level(4, 0.4, 0.6)),
    changes=(StreamChange(kind="merged", what="events merged", seen=3, of=20, example="<b>"),),
    faults=(
        fault("http_500", "kept"),
        fault("close_midstream", "changed", "HTTP 502", agreed=2, requests=3),
    ),
    cancels=(
        CancelDelay(
            moment=MIDSTREAM, sent=2, delays_ms=(1.0, 3.0), never=0, unknown=0, waited_s=3.0
        ),
    ),
    headers=(
        HeaderPassage(direction=TO_UPSTREAM, name="authorization", verdict=PASSED, secret=True),
        HeaderPassage(direction=TO_CLIENT, name="x-token", verdict=PASSED, secret=True),
        HeaderPassage(direction=TO_UPSTREAM, name="x-trace", verdict=PASSED),
        HeaderPassage(direction=TO_UPSTREAM, name="via", verdict=ADDED, value="1.1 nginx"),
    ),
    spread=(
        SessionSpread(by="X-Session-Id", replicas=(9, 1), sessions=5, sticky=0.9, expected=0.75),
    ),
    death=ReplicaDeath(
        open_streams=2,
        seen=(("connection closed after 3 tokens", 2),),
        sent_again=0,
        after=10,
        after_failed=4,
        recovered_s=1.25,
    ),
)
HIDES = GatewayResult(
    name="hides",
    url="http://127.0.0.1:2",
    started="2026-11-26T22:00:00Z",
    version="1",
    faults=(
        fault("http_500", "hidden", "success: 0 tokens, stop"),
        fault("close_midstream", "kept", blocked_s=None),
    ),
    cancels=(
        CancelDelay(moment=MIDSTREAM, sent=2, delays_ms=(), never=2, unknown=0, waited_s=3.0),
    ),
)


def test_the_headline_is_of_the_highest_load_within_the_limit() -> None:
    assert describe_gateway(NGINX) == (
        "nginx: With 2 streams it adds 0.2 ms to the first token (p99 2 ms) and 0.1 ms to each "
        "further token (p99 1 ms). Of 2 faults it hides none and changes 1."
    )
    assert describe_gateway(HIDES) == (
        "hides: Of 2 faults it hides 1 and changes none. It does not pass on that a client left "
        "in mid-stream."
    )


@pytest.mark.parametrize(("limit_ms", "within"), [(6.0, True), (5.9, False)])
def test_a_load_is_within_the_limit_if_both_tokens_are(limit_ms: float, within: bool) -> None:
    assert is_within(level(4, 0.4, 0.6), limit_ms) is within


def find_cells(title: str, row: str) -> list[tuple[str, str, str]]:
    table = next(table for table in list_tables([NGINX, HIDES]) if table.title == title)
    rows = dict((*table.rows, *table.more))
    return [tuple(cell) for cell in rows[row]]


def test_the_console_names_the_secrets_of_the_client_alone() -> None:
    lines = format_gateway_table(NGINX).splitlines()
    assert "secrets of the client that reach the upstream: authorization" in lines


def test_cells_say_what_came() -> None:
    failures = "Failures of the upstream, as clients see them"
    assert find_cells(failures, "HTTP 500 with an error object, streamed") == [
        ("kept", "", "pass"),
        ("hidden: success: 0 tokens, stop", "direct: HTTP 500", "loud"),
    ]
    assert find_cells(failures, "connection closed in the middle, streamed") == [
        (
            "changed: HTTP 502",
            "direct: HTTP 500; 2 of 3 times; sent to the upstream 3 times",
            "open",
        ),
        ("kept", "afterwards the gateway answered no good request any more", "loud"),
    ]
    assert find_cells("Cancellations", "in mid-stream") == [
        ("2 ms", "longest 3 ms", ""),
        ("never seen", "2 of 2, in 3 s", "loud"),
    ]
    assert find_cells("Headers to the upstream", "authorization") == [
        ("passed", "the client's secret reaches the upstream", ""),
        ("not measured", "", ""),
    ]
    assert find_cells("Headers to the client", "x-token")[0] == (
        "passed",
        "the upstream's secret reaches the client",
        "",
    )
    assert find_cells("Headers to the upstream", "via")[0] == ("added", "1.1 nginx", "open")
    nginx, hides = find_cells("Added time", "first token, 1 stream")
    assert nginx == ("0.1 / 1", "of 100 values; direct 0 / 0; error 0", "")
    assert hides == ("-", "", "")
    assert find_cells("Replicas", "sessions with X-Session-Id")[0] == (
        "90% at one replica",
        "75% at random; requests of the replicas: 9, 1",
        "",
    )
    assert find_cells("Replicas", "requests after its death")[0] == (
        "4 of 10 failed",
        "the last after 1.2 s",
        "",
    )
    assert find_cells("Added time", "first token, 4 streams")[0][0] == "0.4 / 4"


def test_what_every_gateway_does_alike_is_folded_up() -> None:
    tables = {table.title: table for table in list_tables([NGINX])}
    failures = tables["Failures of the upstream, as clients see them"]
    assert [label for label, _ in failures.rows] == ["connection closed in the middle, streamed"]
    assert [label for label, _ in failures.more] == ["HTTP 500 with an error object, streamed"]
    headers = tables["Headers to the upstream"]
    assert [label for label, _ in headers.rows] == ["authorization", "via"]
    assert [label for label, _ in headers.more] == ["x-trace"]
    added = tables["Added time"]
    assert [label for label, _ in added.more] == [
        "first token, 2 streams",
        "further token, 2 streams",
    ]


def test_a_gateway_without_a_part_passes_nothing_on() -> None:
    other = replace(NGINX, name="other", faults=(), headers=())
    tables = {table.title: table for table in list_tables([NGINX, other])}
    failures = tables["Failures of the upstream, as clients see them"]
    assert failures.more_title == "1 fault that nginx passes on"
    assert tables["Headers to the upstream"].more_title == "1 header that nginx passes on"
    # a gateway that did not recover has no verdict on the faults behind
    ended = replace(NGINX, name="ended", faults=NGINX.faults[1:])
    tables = {table.title: table for table in list_tables([NGINX, ended])}
    assert tables["Failures of the upstream, as clients see them"].more == ()


def test_times_without_load_have_rows_of_their_own() -> None:
    added = AddedTime(quantity="setup", samples=100, p50_ms=0.5, p99_ms=2.0)
    tables = list_tables([replace(NGINX, without_load=(added,)), HIDES])
    rows = dict(next(table for table in tables if table.title == "Added time").rows)
    cells = rows["connection set-up, one after the other"]
    assert [cell.text for cell in cells] == ["0.5 / 2", "-"]


def test_cpu_of_few_ticks_is_an_upper_bound_everywhere() -> None:
    level = AddedLevel(streams=1, cpu_ms_per_request=14.0, cpu_is_most=True, memory_mb=5.0)
    result = replace(NGINX, levels=(level,))
    assert "CPU of the gateway: at most 14 ms per request, 5 MB" in format_gateway_table(result)
    rows = dict(
        next(table for table in list_tables([result]) if table.title.startswith("CPU")).rows
    )
    assert [cell.text for cell in rows["CPU per request (ms), 1 stream"]] == ["at most 14"]
    assert [cell.text for cell in rows["memory (MB), 1 stream"]] == ["5"]


def test_the_page_escapes_and_needs_no_network() -> None:
    page = render_gateway_page([NGINX, HIDES])
    assert "&lt;b&gt;" in page
    assert "<b>;" not in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "Added to the first token, p99" in page
