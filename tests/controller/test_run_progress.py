"""The stats of a run: what it counts and what it estimates, by pencil, on a clock of its own."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.records import answered, failed

from locust_llm.controller.run_progress import PARTS, PARTS_S, RunProgress
from locust_llm.records.phase_plan import PROFILING
from locust_llm.records.record import Record
from locust_llm.records.run_facts import ProcessHealth
from locust_llm.records.server_times import ServerTimes
from locust_llm.report.load_records import collect_columns
from locust_llm.report.request_selection import RequestSelection
from locust_llm.report.summarise_metrics import collect_evidence
from locust_llm.slo.load_generator_health import ClientVerdict


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def tell(stats: RunProgress, worker: str = "a", **news: object) -> None:
    stats.update(worker, **{"used": 0, "waiting": 0, "decoding": 0, **news})  # type: ignore[arg-type]


def test_what_is_over_is_counted_and_what_we_ended_ourselves_is_apart(clock: Clock) -> None:
    stats = RunProgress(clock)
    for record in [answered(5, 10)] * 3 + [failed(), failed("cut"), failed("cancelled")]:
        stats.add(record)
    assert stats.count_phase(PROFILING) == (3, 1, 1, 1)  # ok, failed, cancelled, cut
    assert stats.output_tokens == 6


def test_processes_are_added_up_as_they_last_told(clock: Clock) -> None:
    stats = RunProgress(clock)
    tell(stats, "a", used=9, waiting=9, decoding=9)
    tell(stats, "a", used=2, waiting=10, decoding=4)
    tell(stats, "b", used=1, waiting=3, decoding=5)
    assert (stats.used, stats.waiting, stats.decoding, stats.inside) == (3, 13, 9, 25)


def after(stats: RunProgress, clock: Clock, seconds: float, **news: object) -> float:
    """The silence after so many seconds of the same status, four a second."""
    for _ in range(round(seconds * 4)):
        clock.now += 0.25
        tell(stats, **news)
    return stats.silent_s()


def test_a_silence_with_requests_in_flight_is_noticed_while_it_lasts(clock: Clock) -> None:
    stats = RunProgress(clock)
    tell(stats, used=1, decoding=3, reads=99, ttfts_s=[0.1])
    busy = {"used": 1, "decoding": 3, "reads": 100}
    tell(stats, **busy)
    assert after(stats, clock, 2.75, **busy) == 0
    assert after(stats, clock, 3.25, **busy) == pytest.approx(6.0)
    tell(stats, **{**busy, "reads": 101})
    assert stats.silent_s() == 0


def test_a_pause_of_the_only_answer_in_flight_is_noticed_too(clock: Clock) -> None:
    """Pauses of up to 1.25 s are usual here, so that one of three times as long is a silence."""
    stats = RunProgress(clock)
    tell(stats, decoding=1, reads=99, ttfts_s=[0.1])
    tell(stats, decoding=1, reads=100)
    assert after(stats, clock, 1, decoding=1, reads=100) == 0
    assert after(stats, clock, 0.25, decoding=1, reads=101) == 0
    assert after(stats, clock, 3.5, decoding=1, reads=101) == 0
    assert after(stats, clock, 0.25, decoding=1, reads=101) == pytest.approx(3.75)
    tell(stats, decoding=1, reads=102)
    assert after(stats, clock, 60, reads=102) == 0  # the answer is over
    assert after(stats, clock, 60, used=1, reads=102) == 0  # a prompt, however long


def test_a_silence_counts_from_the_last_answer_on(clock: Clock) -> None:
    """Something was read at 100 s; then no status shows a request, as each is refused at once. The
    first refusal arrives 2.5 s later."""
    stats = RunProgress(clock)
    clock.now = 100.0
    tell(stats, used=3, reads=99, ttfts_s=[0.1])
    tell(stats, used=3, reads=100)
    assert after(stats, clock, 2.5, reads=100) == 0
    stats.note_end(failed("refused"))
    assert after(stats, clock, 0.5, reads=96) == pytest.approx(3.0)  # a sentinel stream ended
    assert after(stats, clock, 0.5, reads=100) == pytest.approx(3.5)
    stats.note_end(failed("refused"))
    assert after(stats, clock, 2.0, reads=100) == pytest.approx(5.5)


def test_a_silence_of_an_open_loop_counts_from_the_first_request_in_it(clock: Clock) -> None:
    """One request for 2 s and then more of them: 5 s in all. The 60 idle seconds before are none,
    and one alone shows nothing."""
    stats = RunProgress(clock)
    tell(stats, used=1, reads=99, ttfts_s=[0.1])
    tell(stats, reads=100)
    assert after(stats, clock, 60, reads=100) == 0
    assert after(stats, clock, 0.25, used=1, reads=100) == 0
    assert after(stats, clock, 2, used=1, reads=100) == 0
    assert after(stats, clock, 3, used=5, reads=100) == pytest.approx(5.25)


@pytest.mark.parametrize("status", [502, 503, 504])
def test_what_is_read_of_refusals_by_a_proxy_is_no_answer(clock: Clock, status: int) -> None:
    """The last token came at 100 s. From then on a proxy refuses four requests a second, each in
    two reads, of which the second comes a status before its record. A token ends the silence."""
    stats = RunProgress(clock)
    tell(stats, used=3, reads=99, ttfts_s=[0.1])
    tell(stats, used=3, reads=100)
    refusal = failed("http_status", status=status, reads=2, worker="a")
    for number in range(1, 21):
        stats.note_end(refusal)
        clock.now += 0.25
        tell(stats, reads=101 + 2 * number)
    assert stats.silent_s() == pytest.approx(5.0)
    stats.note_end(replace(refusal, outcome="retried"))  # an attempt is no answer either
    assert after(stats, clock, 0.25, reads=143) == pytest.approx(5.25)
    tell(stats, used=3, reads=150, ttfts_s=[0.1])
    assert stats.silent_s() == 0


def test_what_is_no_silence_of_the_server(clock: Clock) -> None:
    stats = RunProgress(clock)
    tell(stats, reads=100, ttfts_s=[4.0])
    assert after(stats, clock, 60, used=1, reads=100) == 0  # one prompt, however long
    assert after(stats, clock, 60, reads=100) == 0  # an idle server
    assert after(stats, clock, 11, used=3, reads=100) == 0  # prompts that take 4 s
    assert after(stats, clock, 1, used=3, reads=100) == pytest.approx(12)
    clock.now += 1.1  # this process stood still, so nobody knows
    assert stats.silent_s() == 0
    assert after(stats, clock, 0.25, used=3, reads=100) == 0


def test_a_server_that_refuses_connections_answers_nothing(clock: Clock) -> None:
    """Before its first token it has 10 s."""
    stats = RunProgress(clock)
    tell(stats)
    for _ in range(12):
        stats.note_end(failed("refused", sent_at=None))
        silent_s = after(stats, clock, 1)
    assert silent_s == pytest.approx(12)
    # a status is an answer, and no socket of our own is none of the server's
    for other in (failed("http_status", status=500), failed("no_socket", sent_at=None)):
        for _ in range(5):
            stats.note_end(other)
            assert after(stats, clock, 4) == 0


def test_ttft_is_of_first_chunks_of_the_last_ten_seconds(clock: Clock) -> None:
    stats = RunProgress(clock)

    def ttft_ms() -> list[float] | None:
        return stats.recent_ttft.percentiles_ms(50, 100)

    assert ttft_ms() is None
    tell(stats, ttfts_s=[2.0])
    clock.now += 4
    tell(stats, "b", ttfts_s=[0.1, 0.3])
    clock.now += 5
    assert ttft_ms() == [300, 2000]
    clock.now += 1
    assert ttft_ms() == [200, 300]
    clock.now += 10
    assert ttft_ms() is None


def test_ttft_from_due_is_of_first_tokens_that_came_and_not_of_requests_that_ended(
    clock: Clock,
) -> None:
    """Behind a gate: of the requests that end now the tokens came long ago, 0.8 s after due. The
    tokens that come now come 4.5 s after due."""
    stats = RunProgress(clock)
    for _ in range(14):
        stats.add(answered(800, 9000))
    tell(stats, ttfts_s=[0.1] * 3, ttfts_from_due_s=[4.4, 4.5, 4.6])
    assert stats.first_token_ms(50, 100, from_due=True) == [4500, 4600]
    assert stats.first_token_ms(50, from_due=False) == [100]


def test_requests_that_still_wait_count_where_they_wait_longer_than_the_percentile(
    clock: Clock,
) -> None:
    """Three tokens came after 1 s; two requests have waited for 5 s and one for 0.5 s. Of 1, 1, 1,
    5 and 5 s the median is 1 and the greatest 5 s."""
    stats = RunProgress(clock)
    tell(stats, ttfts_from_due_s=[1.0] * 3)
    tell(stats, "b", awaited={500: 1, 50: 1})
    tell(stats, "c", awaited={500: 1})
    assert stats.first_token_ms(50, 100, from_due=True) == [1000, 5000]
    tell(stats, "b", awaited={500: 3, 50: 1})
    assert stats.first_token_ms(50, from_due=True) == [5000]
    stats.end("b")
    stats.end("c")
    assert stats.first_token_ms(50, 100, from_due=True) == [1000, 1000]


def test_without_a_token_in_the_window_only_waits_of_all_of_it_are_known(clock: Clock) -> None:
    stats = RunProgress(clock)
    tell(stats, awaited={800: 5})
    assert stats.first_token_ms(50, from_due=True) is None
    tell(stats, awaited={1200: 1, 30: 5})
    assert stats.first_token_ms(50, from_due=True) == [12_000]


def test_tokens_of_answers_that_are_still_on_count_at_once_one_a_read(clock: Clock) -> None:
    """Before any answer is over: 40 reads in 4 s of one process, 20 of another; what came before
    the run is none of it."""
    stats = RunProgress(clock)
    assert stats.tokens_per_s() == 0
    tell(stats, "a", reads=1000)
    tell(stats, "b", reads=0)
    clock.now += 4
    tell(stats, "a", reads=1040)
    tell(stats, "b", reads=20)
    assert stats.tokens_per_s() == pytest.approx(60 / 4)


def test_all_who_ask_in_one_second_have_one_figure(clock: Clock) -> None:
    """100 reads in each second. The status of the next half second comes between the two."""
    stats = RunProgress(clock)
    clock.now = math.floor(clock.now) + 0.25
    for half_second in range(9):
        tell(stats, reads=50 * half_second)
        clock.now += 0.5
    # a quarter of a second after the last status: its reads are not known, and not missed
    clock.now -= 0.25
    first = stats.tokens_per_s()
    clock.now += 0.2
    tell(stats, reads=600)
    assert (first, stats.tokens_per_s()) == (100, 100)
    clock.now += 1
    assert stats.tokens_per_s() > 100


def test_silence_is_no_rate(clock: Clock) -> None:
    """400 reads in 4 s, then nothing for 4 s."""
    stats = RunProgress(clock)
    tell(stats, reads=0)
    clock.now += 4
    tell(stats, reads=400)
    clock.now += 4
    assert stats.tokens_per_s() == 50


def test_a_read_is_worth_what_it_was_in_the_answers_that_are_over(clock: Clock) -> None:
    """Two tokens a read: the same 10 reads a second are 20 tokens, and what was over in between
    moves nothing."""
    stats = RunProgress(clock)
    for second in range(20):
        tell(stats, reads=10 * second)
        clock.now += 1
        if second == 3:
            stats.add(answered(5, 10, output_tokens=60, reads=30))
    tell(stats, reads=200)
    assert stats.tokens_per_s() == pytest.approx(20)


def test_tokens_of_answers_in_one_piece_are_those_of_the_ended(clock: Clock) -> None:
    """An answer of 40 tokens each half second: 80 a second, whatever else was read."""
    stats = RunProgress(clock, streams=False)
    for half_second in range(20):
        tell(stats, reads=half_second + 13 * (half_second > 3))
        clock.now += 0.5
        stats.add(answered(output_tokens=40, reads=1))
    assert stats.tokens_per_s() == pytest.approx(80, rel=0.1)


def test_errors_have_reads_and_no_tokens(clock: Clock) -> None:
    """Of 80 reads 20 were of an answer, of 20 tokens."""
    stats = RunProgress(clock)
    for record in [answered(5, output_tokens=20, reads=20)] + [
        failed("rate_limited", reads=1)
    ] * 60:
        stats.add(record)
    tell(stats, reads=0)
    clock.now += 2
    tell(stats, reads=80)
    assert stats.tokens_per_s() == pytest.approx(10)


def test_now_is_the_last_five_seconds(clock: Clock) -> None:
    stats = RunProgress(clock)
    for reads in (0, 500, 500, 500, 500, 500, 500, 500):
        tell(stats, reads=reads)
        clock.now += 1
    assert stats.tokens_per_s() == 0


records = st.lists(
    st.builds(
        lambda worker, first, late, lag, merged, phase: answered(
            first, first + 10, worker=worker, admitted_at=10.0 - late, read_lag_us=lag, phase=phase,
            merged=((0, round(first * 500)),) if merged else (),
        ),
        st.sampled_from("ab"),
        st.floats(1, 5000),
        st.floats(0, 0.2),
        st.integers(0, 400_000),
        st.booleans(),
        st.sampled_from(["profiling", "profiling", "warmup"]),
    ),
    min_size=1,
    max_size=40,
)  # fmt: skip


@given(records)
def test_the_evidence_so_far_is_that_of_the_report(records: list[Record]) -> None:
    """To three digits."""
    health = ProcessHealth(worker="a", cpu_share=0.5, loop_lag_p99_ms=3.0, cpu_wait_share=0.1)
    stats = RunProgress()
    tell(stats, "a", health=health)
    for record in records:
        stats.add(record)
    columns = collect_columns(records).requests
    main = RequestSelection(columns, columns.has("phase", "profiling"))
    if not main.size:
        assert stats.client() is None
        return
    for exact in collect_evidence(main, [health]):
        found = stats._clients[exact.worker].evidence(exact.worker)
        assert (found.requests, found.merged_share) == (exact.requests, exact.merged_share)
        assert (found.loop_lag_p99_ms, found.cpu_share) == (exact.loop_lag_p99_ms, exact.cpu_share)
        assert found.latest_send_ms == pytest.approx(exact.latest_send_ms, abs=1e-3)


def test_the_client_verdict_so_far(clock: Clock) -> None:
    stats = RunProgress(clock)
    assert stats.client() is None
    stats.add(answered(5, 10, admitted_at=9.9999))
    clock.now += 4.9
    assert stats.client() is None  # too few to say it
    clock.now += 0.1
    assert stats.client().level == "OK"


def test_the_client_verdict_so_far_takes_evidence(clock: Clock) -> None:
    """First chunks of 200 ms that may have come at 120: 18 answers do not tell, 20 do. The progress
    of a health alone is nobody's figure."""
    stats = RunProgress(clock, longest_s=5.0)
    late = answered(200, 220, admitted_at=10.0, merged=((0, 120_000),))
    for _ in range(18):
        stats.add(late)
    clock.now += 5
    health = ProcessHealth(worker="local", cpu_share=0.5, loop_lag_p99_ms=300.0, cpu_wait_share=0.1)
    tell(stats, "local", health=health)
    assert stats.client() == ClientVerdict("OK")
    stats.add(late)
    stats.add(late)
    verdict = stats.client()
    assert (verdict.level, verdict.signals) == ("INVALID", {"merged chunks": "INVALID"})


def test_a_stage_has_a_client_verdict_of_its_own(clock: Clock) -> None:
    """What made the stage before INVALID is not of this one, and the time of the sweep does not
    lift it."""
    stats = RunProgress(clock, longest_s=1000.0)
    for level in ("INVALID", "OK"):
        stats.begin_stage()
        assert stats.client() is None
        merged = ((0, 120_000),) if level == "INVALID" else ()
        for _ in range(20):
            stats.add(answered(200, 220, admitted_at=10.0, merged=merged))
        clock.now += 5
        verdict = stats.client()
        assert verdict is not None
        assert verdict.level == level


def late_and_prompt(late: int, prompt: int) -> list[Record]:
    """Sends 150 ms after their admission, and others at once."""
    return [answered(5, 10, admitted_at=9.85)] * late + [answered(5, 10, admitted_at=10.0)] * prompt


@pytest.mark.parametrize(
    ("late", "ends", "level"),
    [
        (20, {"longest_s": 10.0}, "INVALID"),  # more than half of all that there will be
        (14, {"longest_s": 10.0}, "OK"),
        (20, {"longest_s": 20.0}, None),  # of 60 a third
        (20, {"request_count": 30}, "INVALID"),
        (20, {"request_count": 60}, None),
        (20, {}, None),  # no end is known: as long again
        (0, {"longest_s": 100.0}, "OK"),
    ],
)
def test_an_alarm_waits_until_the_rest_of_the_run_cannot_lift_it(
    clock: Clock, late: int, ends: dict[str, Any], level: str | None
) -> None:
    stats = RunProgress(clock, **ends)
    for record in late_and_prompt(late, 30 - late):
        stats.add(record)
    clock.now += 10
    found = stats.client()
    assert (found and found.level) == level


def test_what_the_rest_of_the_run_cannot_lift_is_shown(clock: Clock) -> None:
    """80 of 100 sends were late: INVALID by the median. Of 1,000 they are 8 %, so p95 stays late,
    and of 2,000 4 %."""
    stats = RunProgress(clock, request_count=1000)
    for record in late_and_prompt(80, 20):
        stats.add(record)
    clock.now += 10
    verdict = stats.client()
    assert (verdict.level, verdict.signals) == ("DEGRADED", {"late sends": "DEGRADED"})
    longer = RunProgress(clock, request_count=2000)
    for record in late_and_prompt(80, 20):
        longer.add(record)
    clock.now += 10
    assert longer.client() is None


def test_an_alarm_of_a_run_without_an_end_may_go_again(clock: Clock) -> None:
    stats = RunProgress(clock)
    for record in late_and_prompt(30, 0):
        stats.add(record)
    clock.now += 10
    assert stats.client().level == "INVALID"
    for record in late_and_prompt(0, 980):
        stats.add(record)
    assert stats.client() == ClientVerdict("OK")  # 30 of 1,010 are not one in twenty


# -- parts -----------------------------------------------------------------------------------------


def parts_ms(stats: RunProgress) -> dict[str, float]:
    """Those that took some time."""
    return {name: round(s * 1e3, 6) for name, s in stats.parts.recent()[1].items() if s}


OWN = {
    "limit": 4,
    "due_at": 9.0,
    "asked_at": 9.1,
    "admitted_at": 9.8,
    "connect_s": 0.15,
    "written_us": 2000,
    "rtt_us": 3000,
}
"""Sent at 10.0: 1 s from due, 700 ms of it at the gate, 150 ms to connect, 150 ms late; then 200 ms
to the first chunk."""
OURS = {"late": 150, "gate": 700, "connect": 150, "send": 2}


@pytest.mark.parametrize(
    ("told", "server"),
    [
        (None, {"network": 3, "server": 195}),
        (
            ServerTimes(source="timings", queue_us=40_000, prefill_us=150_000),
            {"network": 8, "queue": 40, "prefill": 150},
        ),
        (
            ServerTimes(source="timings", prefill_us=150_000),
            {"network": 3, "prefill": 150, "server": 45},
        ),
        (
            ServerTimes(source="headers", queue_us=40_000),
            {"network": 3, "queue": 40, "server": 155},
        ),
        (
            ServerTimes(source="headers", queue_us=99_000, prefill_us=150_000),
            {"network": 3, "server": 195},
        ),
    ],
)
def test_the_parts_of_a_request_by_pencil(
    clock: Clock, told: ServerTimes | None, server: dict[str, float]
) -> None:
    """The last one reports more than there was: left out."""
    stats = RunProgress(clock)
    stats.add(answered(200, 220, server=told, **OWN))
    assert parts_ms(stats) == pytest.approx(OURS | server)


@pytest.mark.parametrize(
    ("told", "parts"),
    [
        (None, {"network": 3, "with_decode": 497}),
        (
            ServerTimes(source="timings", prefill_us=100_000, decode_us=350_000),
            {"network": 3, "prefill": 100, "server": 47, "held": 350},
        ),
        (
            ServerTimes(source="metrics", queue_us=30_000, prefill_us=100_000, decode_us=350_000),
            {"network": 20, "queue": 30, "prefill": 100, "held": 350},
        ),
        (
            ServerTimes(source="headers", queue_us=30_000, prefill_us=100_000),
            {"network": 3, "queue": 30, "prefill": 100, "with_decode": 367},
        ),
        # more than there was
        (
            ServerTimes(source="timings", prefill_us=100_000, decode_us=406_000),
            {"network": 3, "server": 497},
        ),
    ],
)
def test_decode_before_the_first_chunk_is_a_part_as_in_the_report(
    clock: Clock, told: ServerTimes | None, parts: dict[str, float]
) -> None:
    """A proxy sent eight chunks at once, 500 ms after the send."""
    stats = RunProgress(clock)
    stats.add(answered(*[500] * 8, server=told, rtt_us=3000))
    assert parts_ms(stats) == pytest.approx(parts)


def test_without_a_gate_no_part_is_the_gates(clock: Clock) -> None:
    stats = RunProgress(clock)
    stats.add(answered(200, 220, **OWN | {"limit": None}))
    assert parts_ms(stats) == pytest.approx(
        {"late": 850, "connect": 150, "send": 2, "network": 3, "server": 195}
    )


def test_a_retry_and_a_late_reader_are_parts_too(clock: Clock) -> None:
    stats = RunProgress(clock)
    stats.add(
        answered(
            200, 200, due_at=9.5, asked_at=10.0, attempt=2, read_lag_us=2000, merged=((0, 160_000),)
        )
    )
    assert parts_ms(stats) == {"retries": 500, "server": 160, "client": 40}


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 500)), min_size=1, max_size=40))
def test_parts_are_of_the_last_thirty_seconds(gaps: list[tuple[int, int]]) -> None:
    clock, sent = Clock(), list[tuple[int, int]]()
    stats = RunProgress(clock)
    for seconds, ms in gaps:
        clock.now += seconds
        stats.add(answered(ms, phase="warmup" if ms % 3 else "profiling"))
        stats.add(failed())
        sent.append((int(clock.now), ms))
        lately = [ms for at, ms in sent if at > int(clock.now) - PARTS_S]
        assert stats.parts.recent() == (len(lately),
            {**dict.fromkeys(PARTS, 0.0), "server": pytest.approx(
            sum(lately) / len(lately) / 1e3)})  # fmt: skip
    clock.now += PARTS_S
    assert stats.parts.recent() == (0, {})
    assert sum(sums[-1] for sums in stats.parts.by_phase.values()) == len(sent)
