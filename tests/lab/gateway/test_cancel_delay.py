"""Cancel delays, from clients' disconnects and an upstream's log that are written by hand."""

from locust_llm.lab.gateway.cancel_delay import MIDSTREAM, measure_cancel_delay
from locust_llm.lab.gateway.upstream_log import CLIENT_GONE, COMPLETE, UpstreamRequest

MS = 1_000_000


def gone(identity: str, at_ms: float) -> UpstreamRequest:
    return UpstreamRequest(id=identity, end=CLIENT_GONE, gone_ns=int(at_ms * MS))


def test_the_delay_is_from_the_disconnect_until_the_upstream_sees_it() -> None:
    closed = {"a": 100 * MS, "b": 200 * MS, "c": 300 * MS}
    log = [gone("b", 200.25), gone("a", 104), gone("c", 301), gone("other", 1)]
    found = measure_cancel_delay(MIDSTREAM, closed, log, 5.0)
    assert found.delays_ms == (0.25, 1.0, 4.0)
    assert (found.sent, found.never, found.unknown) == (3, 0, 0)
    assert (found.median_ms, found.longest_ms) == (1.0, 4.0)


def test_an_answer_that_went_to_its_end_was_never_cancelled() -> None:
    log = [UpstreamRequest(id="a", end=COMPLETE)]
    found = measure_cancel_delay(MIDSTREAM, {"a": MS, "b": MS}, log, 5.0)
    assert (found.never, found.unknown, found.delays_ms) == (1, 1, ())
    assert found.median_ms is None


def test_both_requests_of_a_gateway_that_sent_it_twice_must_end() -> None:
    twice = [gone("a", 2), UpstreamRequest(id="a", end=COMPLETE)]
    assert measure_cancel_delay(MIDSTREAM, {"a": MS}, twice, 5.0).never == 1
    both = [gone("a", 2), gone("a", 9)]
    assert measure_cancel_delay(MIDSTREAM, {"a": MS}, both, 5.0).delays_ms == (8.0,)
