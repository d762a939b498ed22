"""What a server of the simulator refuses when it is full, and what its conversations find in the
cache."""

import json
import re

import pytest
from support.simulated import HELLO, post, received, started

STREAM = {"messages": HELLO, "stream": True}


def asked(**body):
    return post(json.dumps({**STREAM, **body}).encode())


def test_as_many_open_requests_as_the_queue_takes():
    """Waiting or running, as vLLM counts them: at most two of the four run."""
    with started(
        "--max-num-seqs", "2", "--max-num-queued-reqs", "4", "--time-scale", "1000",
        "--served-model-name", "tiny"
    ) as full:  # fmt: skip
        open_ones = [full.raw(asked()) for _ in range(4)]
        full.until(lambda told: told["engine"]["running"] + told["engine"]["waiting"] == 4)
        status, answer = full.chat()
        assert status == 503
        assert answer["error"] == {
            "message": "The engine is currently busy and cannot accept new requests. Please try "
            "again later or on a "
            "different instance.",
            "type": "Service Unavailable",
            "param": None,
            "code": 503,
        }
        text = full.text("/metrics")[1]
        assert (
            'admission_rejections_total{model_name="tiny",reason="max_num_queued_reqs"} 1.0' in text
        )
        gauges = [
            float(re.search(rf'num_requests_{name}{{engine="0",model_name="tiny"}} (\S+)', text)[1])
            for name in ("running", "waiting")
        ]
        assert sum(gauges) == 4  # who came after the first step began, for its ten seconds, waits
        assert 1 <= gauges[0] <= 2
        open_ones[0].close()  # who leaves makes room
        full.until(lambda told: told["engine"]["running"] + told["engine"]["waiting"] == 3)
        with full.raw(asked()):
            full.until(lambda told: told["engine"]["running"] + told["engine"]["waiting"] == 4)
        for connection in open_ones[1:]:
            connection.close()
        assert full.truth()["refused"] == 1


def test_as_many_prompt_tokens_as_may_wait():
    with started("--max-num-queued-tokens", "20", "--time-scale", "1000") as full:
        # 12 each: the second came when there were fewer than 20
        with full.raw(asked()), full.raw(asked()):
            full.until(lambda told: told["prefilling"] == 2)
            assert full.chat()[0] == 503
            text = full.text("/metrics")[1]
            assert 'reason="max_num_queued_tokens"} 1.0' in text
        full.until(lambda told: told["prefilling"] == 0)
        with full.raw(asked()):
            full.until(lambda told: told["prefilling"] == 1)


def test_tokens_are_queued_until_the_first_token_only():
    with started("--max-num-queued-tokens", "1", "--ttft-ms", "1", "--itl-ms", "1") as one:
        connection = one.connect()
        assert [one.chat(connection, max_tokens=2)[0] for _ in range(3)] == [200] * 3
        one.stream("error=0")
        one.stream("cut=1", max_tokens=5)
        assert one.chat(connection, max_tokens=1)[0] == 200
        connection.close()


def test_an_api_key():
    with started("--api-key", "secret", "--ttft-ms", "0", "--itl-ms", "0") as locked:
        assert locked.chat(max_tokens=1) == (401, {"error": "Unauthorized"})
        assert locked.chat(max_tokens=1, headers={"Authorization": "Bearer wrong"})[0] == 401
        assert locked.chat(max_tokens=1, headers={"Authorization": "Bearer secret"})[0] == 200
        assert locked.call("GET", "/v1/models")[0] == 401
        assert locked.call("GET", "/health")[0] == 200


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags", [(), ("--policy", "prefill-first"), ("--policy", "disaggregated")]
)
def test_the_next_turn_finds_the_last_one_in_the_cache(flags):
    with started(*flags) as simulator:
        connection = simulator.connect()
        turns = [{"role": "user", "content": "Tell me about " + "the river " * 30}]
        first = simulator.chat(connection, messages=turns, max_tokens=40)[1]
        cached = first["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == 0
        turns += [first["choices"][0]["message"], {"role": "user", "content": "And then?"}]
        second = simulator.chat(
            connection, messages=turns, max_tokens=8, headers={"X-Request-Id": "second"}
        )[1]
        cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
        known = first["usage"]["total_tokens"] - 1  # the last token of an answer is never computed
        # where another GPU decodes, the answer never was where the prompts are
        known = first["usage"]["prompt_tokens"] if flags[1:] == ("disaggregated",) else known
        assert cached == known // 16 * 16
        assert simulator.row("second")["cached_tokens"] == cached
        connection.close()


def test_without_prefix_caching_nothing_is_cached():
    with started("--no-enable-prefix-caching") as simulator:
        connection = simulator.connect()
        long = [{"role": "user", "content": "the river " * 30}]
        for _ in range(2):
            usage = simulator.chat(connection, messages=long, max_tokens=1)[1]["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] == 0
        connection.close()


@pytest.mark.parametrize(
    ("flags", "about"),
    [
        ((), "gpu h100, chunked"),
        (("--no-enable-chunked-prefill",), "gpu h100, mixed"),
        (("--policy", "static", "--gpu", "a100-40"), "gpu a100-40, static"),
        (("--max-num-partial-prefills", "4"), "gpu h100, partial-prefills"),
        (
            ("--policy", "disaggregated", "--prefill-engines", "2"),
            "gpu h100, disaggregated: 2 prefill, 1 decode",
        ),
        (("--ttft-ms", "5", "--itl-ms", "2"), "fixed latency: ttft 5 ms, itl 2 ms"),
    ],
)
def test_every_policy_answers_over_http(flags, about):
    with started(*flags) as simulator:
        assert about in simulator.ready
        data = received(
            simulator.raw(
                post(json.dumps({**STREAM, "max_tokens": 5}).encode(), b"Connection: close\r\n")
            )
        )
        assert data.count(b'"content":"') == 6  # the role's, and five tokens
        assert data.endswith(b"0\r\n\r\n")


def test_who_hangs_up_frees_its_place_wherever_it_is():
    with started("--policy", "disaggregated", "--time-scale", "30") as simulator:
        connections = [simulator.raw(asked(max_tokens=1000)) for _ in range(3)]
        simulator.until(lambda told: told["engine"]["running"] > 0)
        for connection in connections:
            connection.close()
        told = simulator.until(lambda told: all(row["aborted"] for row in told["requests"]))
        engine = told["engine"]
        assert (
            engine["running"]
            == engine["waiting"]
            == engine["transferring"]
            == engine["used_blocks"]
            == 0
        )


def test_the_row_of_a_request_tells_when_it_began():
    with started(
        "--max-num-seqs", "1", "--max-num-batched-tokens", "512", "--time-scale", "4"
    ) as simulator:
        long = post(
            json.dumps({**STREAM, "max_tokens": 8}).encode(),
            b"X-Request-Id: first\r\nConnection: close\r\n",
        )
        short = long.replace(b"first", b"second")
        for connection in [simulator.raw(long), simulator.raw(short)]:
            received(connection)
        first, second = simulator.row("first"), simulator.row("second")
        assert first["arrived_at"] <= first["started_at"] < first["first_at"][0]
        # the one place was taken
        assert second["arrived_at"] < first["first_at"][0] < second["started_at"]
        assert (first["preemptions"], first["fault"], first["cached_tokens"]) == (0, "", 0)
