"""Trials of faults, cancellations and headers through the proxy of the tests, whose changes are
known."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support.planted_proxy import planted_proxy

from locust_llm.lab.gateway.cancel_trials import make_cancel_trial, run_cancel_trials
from locust_llm.lab.gateway.fault_trials import (
    PlannedFault,
    list_planned_faults,
    run_fault_trials,
)
from locust_llm.lab.gateway.gateway_client import GatewayAddress, make_address
from locust_llm.lab.gateway.header_trials import (
    run_death_trial,
    run_header_trial,
    run_spread_trials,
)
from locust_llm.lab.gateway.headers_and_routing import ADDED, CHANGED, DROPPED, TO_CLIENT
from locust_llm.lab.gateway.upstream_log import ReadLog, read_upstream_log
from locust_llm.lab.gateway.upstream_process import UpstreamReplicas


def at(port: int) -> GatewayAddress:
    return make_address("a", f"http://127.0.0.1:{port}")


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpstreamReplicas]:
    with UpstreamReplicas(tmp_path_factory.mktemp("upstream"), 2) as replicas:
        yield replicas


@pytest.fixture
def read_log(upstream: UpstreamReplicas) -> ReadLog:
    return lambda: read_upstream_log(upstream.folder)


QUICK = ("http_500", "close_midstream", "error_midstream", "wrong_usage")


def find_verdicts(
    upstream: UpstreamReplicas, read_log: ReadLog, log: Path, plants: Sequence[str]
) -> dict[str, tuple[str, int]]:
    planned = [
        one for one in list_planned_faults() if one.fault in QUICK and one.mode == "streamed"
    ]
    run = "-".join(plants) or "plain"
    with planted_proxy([upstream[0].port], log, plants=plants) as port:
        found = run_fault_trials(at(upstream[0].port), at(port), read_log, run, planned)
    return {
        f"{one.fault}{' once' if one.heals else ''}": (one.verdict, one.requests) for one in found
    }


@pytest.mark.parametrize(
    ("plants", "expected"),
    [
        (
            [],
            {
                "http_500": ("kept", 1),
                "error_midstream": ("kept", 1),
                "close_midstream": ("kept", 1),
                "wrong_usage": ("kept", 1),
                "http_500 once": ("kept", 1),
                "close_midstream once": ("kept", 1),
            },
        ),
        (
            ["hide_errors"],
            {
                "http_500": ("hidden", 1),
                "error_midstream": ("hidden", 1),
                "close_midstream": ("hidden", 1),
                "wrong_usage": ("kept", 1),
                "http_500 once": ("hidden", 1),
                "close_midstream once": ("hidden", 1),
            },
        ),
        (
            ["retry"],
            {
                "http_500": ("kept", 2),
                "error_midstream": ("kept", 1),
                "close_midstream": ("kept", 1),
                "wrong_usage": ("kept", 1),
                "http_500 once": ("retried", 2),
                "close_midstream once": ("kept", 1),
            },
        ),
        (
            ["translate_errors"],
            {
                "http_500": ("changed", 1),
                "error_midstream": ("kept", 1),
                "close_midstream": ("kept", 1),
                "wrong_usage": ("kept", 1),
                "http_500 once": ("changed", 1),
                "close_midstream once": ("kept", 1),
            },
        ),
        (
            ["drop_usage"],
            {
                "http_500": ("kept", 1),
                "error_midstream": ("kept", 1),
                "close_midstream": ("kept", 1),
                "wrong_usage": ("changed", 1),
                "http_500 once": ("kept", 1),
                "close_midstream once": ("kept", 1),
            },
        ),
    ],
    ids=lambda value: "-".join(value) or "none" if isinstance(value, list) else "",
)
def test_faults_are_judged_as_they_were_planted(
    upstream: UpstreamReplicas,
    read_log: ReadLog,
    tmp_path: Path,
    plants: list[str],
    expected: dict[str, tuple[str, int]],
) -> None:
    assert find_verdicts(upstream, read_log, tmp_path / "log", plants) == expected


def test_a_request_that_is_sent_again_to_another_replica_succeeds(
    upstream: UpstreamReplicas, read_log: ReadLog, tmp_path: Path
) -> None:
    """The fault comes once, at whichever replica the request arrives first."""
    planned = [PlannedFault("http_500", "streamed", heals=True)]
    ports = [upstream[0].port, upstream[1].port]
    with planted_proxy(ports, tmp_path / "log", plants=["retry"]) as port:
        (found,) = run_fault_trials(at(ports[0]), at(port), read_log, "again", planned)
    assert (found.verdict, found.requests, found.agreed) == ("retried", 2, 3)


def test_each_fault_is_tried_in_each_of_its_forms() -> None:
    names = [one.name for one in list_planned_faults()]
    assert len(names) == len({*names})
    assert {"http_500-streamed", "http_500-whole", "http_500-streamed-once"} <= {*names}
    trial = PlannedFault("http_500", "whole", heals=False).make_trial("direct", 2, "r")
    assert (trial.script.id, trial.streamed) == ("r-http_500-whole-direct-2", False)


@pytest.mark.parametrize(("plant", "never"), [("", 0), ("ignore_cancel", 2)])
def test_cancellations_are_seen_or_not(
    upstream: UpstreamReplicas, read_log: ReadLog, tmp_path: Path, plant: str, never: int
) -> None:
    plants = [plant] if plant else []
    with planted_proxy([upstream[0].port], tmp_path / "log", plants=plants) as port:
        found = run_cancel_trials(at(port), read_log, f"cancel-{plant}", trials=2, waited_s=1.0)
    assert [(one.sent, one.never, one.unknown) for one in found] == [(2, never, 0)] * 3
    assert all(0 < delay < 1000 for one in found for delay in one.delays_ms)


def test_an_answer_goes_on_behind_its_cancellation() -> None:
    for moment in ("before_first_token", "midstream", "not_streamed"):
        trial = make_cancel_trial(moment, "x", 0, 3.0)
        ends_s = (trial.script.ttft_ms + trial.script.gap_ms * trial.script.tokens) / 1e3
        assert trial.cancel_after_s == 0.3
        assert ends_s >= 0.3 + 3.0 + 1.0


def test_headers_that_were_rewritten_are_named(
    upstream: UpstreamReplicas, read_log: ReadLog, tmp_path: Path
) -> None:
    with planted_proxy([upstream[0].port], tmp_path / "log") as port:
        plain = run_header_trial(at(upstream[0].port), at(port), read_log, "plain-heads")
    assert {one.verdict for one in plain} == {"passed"}
    assert [one.name for one in plain if one.secret] == [
        "authorization", "cookie", "x-api-key", "x-upstream-secret",
    ]  # fmt: skip
    with planted_proxy([upstream[0].port], tmp_path / "log", plants=["request_headers"]) as port:
        upwards = run_header_trial(at(upstream[0].port), at(port), read_log, "up-heads")
    verdicts = {one.name: one.verdict for one in upwards}
    assert (verdicts["user-agent"], verdicts["x-planted"]) == (CHANGED, ADDED)
    assert (verdicts["x-api-key"], verdicts["authorization"]) == (DROPPED, "passed")
    with planted_proxy([upstream[0].port], tmp_path / "log", plants=["response_headers"]) as port:
        both = run_header_trial(at(upstream[0].port), at(port), read_log, "down-heads")
    downwards = {one.name: one.verdict for one in both if one.direction == TO_CLIENT}
    assert (downwards["server"], downwards["x-upstream-secret"]) == (CHANGED, DROPPED)


def test_requests_in_turn_are_not_sticky(upstream: UpstreamReplicas, tmp_path: Path) -> None:
    ports = [upstream[0].port, upstream[1].port]
    with planted_proxy(ports, tmp_path / "log") as port:
        kept, named = run_spread_trials(at(port), 2, "turns", sessions=4)
    # the proxy keeps one connection for each of its client's, and takes upstreams in turn
    assert (kept.replicas, kept.sticky) == ((8, 8), 1.0)
    assert (named.replicas, named.sticky, named.expected) == ((8, 8), 0.5, 0.6875)


@pytest.mark.slow
def test_a_replica_that_dies_takes_its_streams_along(
    upstream: UpstreamReplicas, read_log: ReadLog, tmp_path: Path
) -> None:
    ports = [upstream[0].port, upstream[1].port]
    with planted_proxy(ports, tmp_path / "log") as port:
        death = run_death_trial(at(port), upstream, read_log, "death")
    assert (death.open_streams, death.sent_again) == (4, 0)
    ((seen, count),) = death.seen
    assert seen.startswith(("connection closed after", "connection reset after"))
    assert count == 4
    # every second request goes to the dead one, which refuses it
    assert death.after_failed in (death.after // 2, (death.after + 1) // 2)
