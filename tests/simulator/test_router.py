"""Several replicas behind one address: where each request goes, what is cached there, and what the
answers and pages say."""

import http.client
import json
import re

import pytest
from support.simulated import CHAT, started

from locust_llm.simulator.scheduling.engine import Router, merge_engine_states
from locust_llm.simulator.simulated_metrics import EngineMetrics, format_metrics_page


class Cache:
    """An engine as the router sees it: it has so many blocks of any prompt."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks

    def find(self, keys):
        return min(self.blocks, len(keys))


def test_requests_go_round():
    router = Router([Cache(0)] * 3)
    assert [router.choose([1], "same") for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert router.num_open == [3, 2, 2]
    router.ended(0)
    assert router.num_open == [2, 2, 2]
    assert router.token_of(1) == ""


def test_a_session_stays_where_it_began_and_new_ones_go_round(monkeypatch):
    router = Router([Cache(0)] * 2, "session")
    asked = ["a", "b", "a", "c", "b", "", "", "c", "a", "d"]
    assert [router.choose([], name) for name in asked] == [0, 1, 0, 0, 1, 1, 0, 0, 0, 1]
    monkeypatch.setattr("locust_llm.simulator.scheduling.engine.MAX_SESSIONS", 2)
    router = Router([Cache(0)] * 3, "session")
    # b was forgotten for c, and begins anew
    assert [router.choose([], name) for name in "abacb"] == [0, 1, 0, 2, 0]


def test_a_token_says_where():
    router = Router([Cache(0)] * 3, "token")
    assert [router.token_of(number) for number in range(3)] == [
        "replica-0",
        "replica-1",
        "replica-2",
    ]
    sent = ["", "", "replica-0", "replica-1", "replica-7", ""]  # there is no 7: the next one
    assert [router.choose([], token) for token in sent] == [0, 1, 0, 1, 2, 0]


def test_most_of_the_prefix_then_fewest_requests_then_the_turn():
    keys = list(range(10))
    caches = [Cache(0), Cache(4), Cache(4)]
    router = Router(caches, "prefix")
    # equal ones: the fewest requests, then the turn
    assert [router.choose(keys) for _ in range(3)] == [1, 2, 1]
    caches[0].blocks = 5
    assert router.choose(keys) == 0
    assert router.num_open == [1, 2, 1]
    # all have four: of 0 and 2 it is the turn of 2
    assert [router.choose(keys[:4]) for _ in range(2)] == [2, 0]


def test_states_and_pages_of_several_engines():
    states = [
        {"running": 2, "max_late_s": 0.5, "lost_s": 1.0},
        {"running": 3, "max_late_s": 0.1, "lost_s": 2.0},
    ]
    assert merge_engine_states(states) == {"running": 5, "max_late_s": 0.5, "lost_s": 3.0}
    pair = [EngineMetrics("m", 100), EngineMetrics("m", 100)]
    pair[1].first_token(7, 0.5)
    page = format_metrics_page(
        zip(pair, ({"running": 2, "waiting": 0}, {"running": 3, "waiting": 0}), strict=True)
    )
    assert (
        'vllm:num_requests_running{engine="0",model_name="m"} '
        '2.0\nvllm:num_requests_running{engine="1",' in page
    )
    assert 'vllm:prompt_tokens_total{engine="1",model_name="m"} 7.0' in page
    heads = re.findall(r"# TYPE (\S+)", page)
    assert len(heads) == len(set(heads))  # each family once, in one piece
    assert page.count("vllm:admission_rejections_total{") == 2


@pytest.mark.slow
def test_over_http_each_answer_names_its_replica_and_a_session_finds_its_cache():
    """What a turn finds is what the turns before it left in the same replica."""

    def turns(simulator, headers, count=4, name="talk"):
        """(replica, cached tokens) of a conversation's turns; ``headers``: from the last answer's
        to the next request's."""
        messages, found, last = [], [], {}
        for turn in range(count):
            messages.append({"role": "user", "content": f"{name} " + f"word{turn} " * 200})
            own = simulator.connect()
            body = json.dumps({"messages": messages, "max_tokens": 8, "stream": bool(turn % 2)})
            own.request("POST", CHAT, body, headers(last))
            answer = own.getresponse()
            last, _ = answer.headers, answer.read()
            own.close()
            row = max(simulator.truth()["requests"], key=lambda row: row["arrived_at"])
            assert int(last["x-backend"]) == row["backend"]
            found.append((row["backend"], row["cached_tokens"]))
        return found

    def no_header(last: http.client.HTTPMessage) -> dict[str, str]:
        return {}

    def by_token(last):
        return {"x-affinity": last["x-affinity"]} if last else {}

    flags = "--time-scale", "0.1", "--replicas", "2"
    with started(*flags) as simulator:
        around = turns(simulator, no_header)
        assert [number for number, _ in around] == [0, 1, 0, 1]
        assert around[1][1] == 0 < around[2][1]
        page = simulator.text("/metrics")[1]
        sent = {number: re.search(rf'request_success_total{{engine="{number}".*"length".*}} (\S+)',
            page)[1]
                for number in "01"}  # fmt: skip
        assert sent == {"0": "2.0", "1": "2.0"}
        assert len(simulator.truth()["engines"]) == 2
    with started(*flags, "--route", "session") as simulator:
        sticky = turns(simulator, lambda last: {"X-Session-Id": "one"})
        assert [number for number, _ in sticky] == [0, 0, 0, 0]
        assert 0 < sticky[1][1] < sticky[2][1] < sticky[3][1]
        assert sticky[2][1] > around[2][1]
    with started(*flags, "--route", "token", "--route-header", "X-Affinity") as simulator:
        turns(simulator, no_header, 1, "else")
        assert [number for number, _ in turns(simulator, by_token)] == [1, 1, 1, 1]
    with started(*flags, "--route", "prefix") as simulator:
        turns(simulator, no_header, 1, "else")
        found = turns(simulator, no_header)
        assert len({number for number, _ in found[1:]}) == 1
        assert [cached for _, cached in found[1:]] == [cached for _, cached in sticky[1:]]
