"""Behaviours by name: what may be asked for, and what each does to the bytes."""

import json
import re
import socket
import time
from itertools import pairwise

import pytest
from support.direct_simulator import DirectSimulator
from support.simulated import HELLO, events, post, received, started

from locust_llm.simulator.simulated_faults import LIKE, Quirks, parse_quirks

VLLM = LIKE["vllm"]


def test_a_list_of_changes():
    found = parse_quirks("role=early, stall=5,stall_s=0.25 ,done=no,", VLLM)
    assert found == Quirks(role="early", stall=5, stall_s=0.25, done=False)
    assert parse_quirks("", found) is not None
    assert parse_quirks("role=first", found) == Quirks(stall=5, stall_s=0.25, done=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("explode", "unknown change 'explode': use one of role, role_content, tokens_per_chunk"),
        ("role=late", "role must be one of first, early, none, got 'late'"),
        ("role", "role must be one of first, early, none, got ''"),
        ("done=false", "done must be one of yes, no, got 'false'"),
        ("cut=soon", "cut must be a number, got 'soon'"),
        ("cut=1.5", "cut must be a number, got '1.5'"),
        ("stall_s=inf", "stall_s must be a number, got 'inf'"),
        ("stall_s=-2", "stall_s must be a number, got '-2'"),
        ("tokens_per_chunk=0", "tokens_per_chunk must be at least 1"),
        ("status=200", "status must be 400 to 599, got '200'"),
    ],
)
def test_what_cannot_be_asked_for(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_quirks(text, VLLM)


@pytest.fixture(scope="module")
def server():
    with started(
        "--ttft-ms", "20", "--itl-ms", "4", "--truth", "full", "--max-model-len", "1000"
    ) as simulator:
        yield simulator


def chunks(content):
    """The JSON of each event, without [DONE]."""
    return [json.loads(data) for data in events(content) if data != b"[DONE]"]


def deltas(content):
    return [chunk["choices"][0]["delta"] for chunk in chunks(content) if chunk["choices"]]


def reasons(content):
    return [
        chunk["choices"][0].get("finish_reason") for chunk in chunks(content) if chunk["choices"]
    ]


def words(content):
    return "".join(delta.get("content") or "" for delta in deltas(content)).split()


ASKED = {"max_tokens": 5, "stream_options": {"include_usage": True}}
USED = {
    "prompt_tokens": 12,
    "total_tokens": 17,
    "completion_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 0},
}


def test_as_vllm(server):
    content, ended = server.stream("", **ASKED)
    assert ended
    assert content.endswith(b"data: [DONE]\n\n")
    assert deltas(content)[0] == {"role": "assistant", "content": ""}
    assert reasons(content) == [None] * 5 + ["length"]  # beside content
    assert (chunks(content)[-1]["choices"], chunks(content)[-1]["usage"]) == ([], USED)
    assert len(words(content)) == 5


def test_as_llama_cpp():
    with started("--ttft-ms", "1", "--itl-ms", "1", "--like", "llama.cpp") as simulator:
        content, _ = simulator.stream(**ASKED)
    assert deltas(content)[0] == {"role": "assistant", "content": None}
    assert (deltas(content)[-1], reasons(content)) == ({}, [None] * 6 + ["length"])
    assert (chunks(content)[-1]["choices"], chunks(content)[-1]["usage"]) == ([], USED)


def test_as_transformers():
    with started("--ttft-ms", "600", "--itl-ms", "1", "--like", "transformers") as simulator:
        asked = json.dumps({"messages": HELLO, "stream": True, "max_tokens": 5}).encode()
        with simulator.raw(post(asked, b"Connection: close\r\n")) as connection:
            first = connection.recv(65536)
            came = time.monotonic()
            assert b'"delta":{"role":"assistant"}' in first  # long before there is a token
            assert b'"content"' not in first
            rest = received(connection)
            assert time.monotonic() - came > 0.15
        content, ended = simulator.stream(max_tokens=5)
    assert ended
    assert b"[DONE]" not in content + rest
    assert chunks(content)[-1]["usage"] == USED  # though nobody asked
    assert (deltas(content)[-1], reasons(content)[-1]) == ({}, "length")


def test_as_litellm(server):
    content, _ = server.stream("finish=own, usage=choices", **ASKED)
    assert chunks(content)[-1]["choices"] == [{"index": 0, "delta": {}}]
    assert chunks(content)[-1]["usage"] == USED
    assert content.endswith(b"data: [DONE]\n\n")


def test_several_tokens_a_chunk_the_first_alone(server):
    content, _ = server.stream("tokens_per_chunk=3, role=none", max_tokens=9)
    assert [len(delta["content"].split()) for delta in deltas(content)] == [1, 3, 3, 2]
    assert len(words(content)) == 9
    with started("--ttft-ms", "1", "--itl-ms", "1", "--stream-interval", "10") as simulator:
        content, _ = simulator.stream(max_tokens=25)
        assert [len(delta["content"].split()) for delta in deltas(content)] == [0, 1, 10, 10, 4]


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_first(server, field):
    content, _ = server.stream(
        f"reasoning=3, tokens_per_chunk=2, role=none, reasoning_field={field}", max_tokens=6
    )
    found = deltas(content)
    assert [tuple(delta) for delta in found] == [(field,), (field,), ("content",), ("content",)]
    assert [len(delta.popitem()[1].split()) for delta in found] == [1, 2, 2, 1]


def test_usage_in_every_chunk(server):
    content, _ = server.stream(
        max_tokens=3, stream_options={"include_usage": True, "continuous_usage_stats": True}
    )
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks(content)] == [0, 1, 2, 3, 3]
    content, _ = server.stream("continuous_usage=yes", max_tokens=3)
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks(content)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("usage", "in_finish", "at_the_end"),
    [
        ("asked", False, True),
        ("always", False, True),
        ("finish", True, False),
        ("none", False, False),
    ],
)
def test_where_usage_is(server, usage, in_finish, at_the_end):
    content, _ = server.stream(f"usage={usage}", **ASKED)
    with_finish = next(
        chunk
        for chunk in chunks(content)
        if chunk["choices"] and chunk["choices"][0]["finish_reason"]
    )
    assert ("usage" in with_finish) == in_finish
    assert (chunks(content)[-1]["choices"] == []) == at_the_end
    unasked, _ = server.stream(f"usage={usage}", max_tokens=2)
    assert (b'"usage"' in unasked) == (usage in ("always", "finish"))


def test_no_finish_reason(server):
    content, _ = server.stream("finish=none", **ASKED)
    assert reasons(content) == [None] * 6


def test_pings_while_nothing_comes(server):
    """The first token takes 20 ms."""
    content, _ = server.stream("ping_s=0.006", max_tokens=1)
    pings, _, rest = content.partition(b"data: ")
    assert pings in (b":\n\n", b":\n\n" * 2, b":\n\n" * 3)
    assert b":\n\n" not in rest.replace(b"}\n\n", b"")
    assert server.stream("ping_s=5", max_tokens=1)[0].startswith(b"data: ")


def test_an_answer_may_end_by_itself(server):
    content, _ = server.stream("eos=2", **ASKED)
    assert (len(words(content)), reasons(content)[-1]) == (2, "stop")
    assert chunks(content)[-1]["usage"]["completion_tokens"] == 2
    content, _ = server.stream("eos=0", **ASKED)  # at once: the end itself counts as a token
    assert (words(content), reasons(content)) == ([], [None, "stop"])
    assert chunks(content)[-1]["usage"]["completion_tokens"] == 1
    content, _ = server.stream("eos=2", ignore_eos=True, **ASKED)
    assert (len(words(content)), reasons(content)[-1]) == (5, "length")
    status, answer = server.chat(headers={"X-Simulate": "eos=0"}, max_tokens=5)
    assert (status, answer["choices"][0]["message"]["content"]) == (200, "")
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_reasoning_of_an_answer_in_one_piece(server):
    message = server.chat(headers={"X-Simulate": "reasoning=2"}, max_tokens=5)[1]["choices"][0][
        "message"
    ]
    assert (len(message["reasoning"].split()), len(message["content"].split())) == (2, 3)


def test_an_unknown_quirk_in_the_header_is_a_400(server):
    status, answer = server.chat(headers={"X-Simulate": "explode=yes"})
    assert status == 400
    assert answer["error"]["message"].startswith(
        "X-Simulate: unknown change 'explode': use one of role, "
    )


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, "AuthenticationError"),
        (429, "RateLimitError"),
        (500, "InternalServerError"),
        (503, "Service Unavailable"),
    ],
)
def test_a_status(server, status, kind):
    got, answer = server.chat(headers={"X-Simulate": f"status={status}"})
    assert (got, answer["error"]["code"], answer["error"]["type"]) == (status, status, kind)


def test_too_many_requests_says_when_to_come_back(server):
    with server.raw(post(b"{}", b"Connection: close\r\nX-Simulate: status=429\r\n")) as connection:
        assert b"\r\nRetry-After: 1\r\n" in received(connection)


@pytest.mark.parametrize("form", ["object", "string"])
def test_an_error_in_the_stream(server, form):
    server.call("POST", "/truth/reset")
    content, ended = server.stream(f"error=2, error_form={form}", **ASKED)
    assert ended
    *before, error, done = events(content)
    assert done == b"[DONE]"
    told = json.loads(error)["error"]
    assert (told["code"] if form == "object" else told[:10]) == (
        500 if form == "object" else "EngineCore"
    )
    assert len(before) == 3  # the role, two tokens
    (row,) = server.truth()["requests"]
    assert (row["output_tokens"], row["fault"], row["aborted"]) == (2, "error", False)
    assert server.truth()["engine"]["running"] == 0


def test_an_error_before_the_first_token(server):
    server.call("POST", "/truth/reset")
    content, ended = server.stream("error=0, done=no", **ASKED)
    assert ended
    assert [list(json.loads(data)) for data in events(content)] == [["error"]]
    assert server.truth()["prefilling"] == 0
    status, answer = server.chat(headers={"X-Simulate": "error=0"})
    assert (status, answer["error"]["type"]) == (500, "InternalServerError")


@pytest.mark.parametrize("tokens", [0, 2])
def test_a_cut_is_an_end_without_the_last_chunk(server, tokens):
    server.call("POST", "/truth/reset")
    content, ended = server.stream(f"cut={tokens}", **ASKED)
    assert not ended
    assert len(events(content)) == tokens + (tokens > 0)
    told = server.truth()
    assert (told["requests"][0]["fault"], told["engine"]["running"], told["prefilling"]) == (
        "cut",
        0,
        0,
    )


def test_a_reset(server):
    asked = json.dumps({"messages": HELLO, "stream": True, "max_tokens": 5}).encode()
    with pytest.raises(ConnectionResetError):
        received(server.raw(post(asked, b"X-Simulate: reset=2\r\n")))


def test_a_cut_answer_in_one_piece_is_no_answer(server):
    asked = json.dumps({"messages": HELLO, "max_tokens": 5}).encode()
    assert received(server.raw(post(asked, b"X-Simulate: cut=3\r\n"))) == b""


def test_a_stall_holds_everything_back_and_then_lets_it_go(server):
    server.call("POST", "/truth/reset")
    content, _ = server.stream("stall=2, stall_s=0.2", max_tokens=6)
    assert len(words(content)) == 6
    (row,) = server.truth()["requests"]
    after = [pair[1] for pair in row["token_at"]]
    gaps = [later - earlier for earlier, later in pairwise(after)]
    assert gaps[1] > 0.19
    assert sorted(gaps[2:])[1] < 0.1  # of three: this machine may hold one back


def test_slow_headers(server):
    asked = json.dumps({"messages": HELLO, "stream": True, "max_tokens": 2}).encode()
    began = time.monotonic()
    with server.raw(
        post(asked, b"Connection: close\r\nX-Simulate: slow_headers_s=0.25\r\n")
    ) as connection:
        assert connection.recv(1) == b"H"
        assert time.monotonic() - began > 0.24
        assert received(connection).endswith(b"0\r\n\r\n")
    began = time.monotonic()
    assert server.chat(headers={"X-Simulate": "slow_headers_s=0.25"}, max_tokens=1)[0] == 200
    assert time.monotonic() - began > 0.24


def test_broken_json(server):
    content, ended = server.stream("malformed=2, role=none", max_tokens=3)
    assert ended
    good, broken, other, _ = events(content)
    json.loads(good), json.loads(other)
    with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
        json.loads(broken)


def test_letters_sent_in_halves(server):
    asked = json.dumps({"messages": HELLO, "stream": True, "max_tokens": 3}).encode()
    with server.raw(
        post(asked, b"Connection: close\r\nX-Simulate: split_utf8=yes\r\n")
    ) as connection:
        data = received(connection)
    assert b"\xc3\r\n" in data  # half a letter ends an HTTP chunk
    content, ended = server.stream("split_utf8=yes", max_tokens=3)
    assert ended
    assert [word[-1] for word in words(content)] == ["é"] * 3


def test_who_hangs_up_during_a_stall_leaves_nothing(server):
    server.call("POST", "/truth/reset")
    asked = json.dumps({"messages": HELLO, "stream": True, "max_tokens": 900}).encode()
    with server.raw(post(asked, b"X-Simulate: stall=1, stall_s=30\r\n")) as connection:
        server.until(lambda told: told["requests"] and told["requests"][0]["first_at"])
        connection.shutdown(socket.SHUT_RDWR)
    told = server.until(lambda told: told["engine"]["running"] == 0)
    assert told["requests"][0]["aborted"]


@pytest.mark.parametrize(
    ("ghosts", "stream", "before_first", "in_mid_decode"),
    [
        ("none", True, 0, 0),
        ("step", True, 1, 1),
        ("max_tokens", True, 20, 15),
        ("unstreamed", True, 0, 0),
        ("unstreamed", False, 20, 15),
    ],
)
def test_the_work_for_clients_who_left(ghosts, stream, before_first, in_mid_decode):
    """The first of 20 tokens comes after a second, and the fifth 4 ms later."""
    server = DirectSimulator(f"ghosts={ghosts}")
    generated = 0
    for left_at, ghost_tokens in ((0.5, before_first), (1.0045, in_mid_decode)):
        sent = server.send("Hello", max_tokens=20, stream=stream)
        row = sent.row
        server.run(left_at)
        received = server.server.metrics[0].generation_tokens - generated
        sent.cancel()
        assert row.aborted
        server.run()
        assert row.ghost_tokens == ghost_tokens
        generated += received + ghost_tokens
        assert server.server.metrics[0].generation_tokens == generated
        assert server.server.states()[0]["running"] == server.server.num_queued_tokens == 0


def test_faults_come_at_their_rate_and_the_header_goes_before_them():
    with started(
        "--ttft-ms", "0", "--itl-ms", "0", "--faults", "status=503", "--fault-rate", "0.3"
    ) as simulator:
        connection = simulator.connect()
        got = [simulator.chat(connection, max_tokens=1)[0] for _ in range(300)]
        assert set(got) == {200, 503}
        assert 60 < got.count(503) < 120
        told = [
            simulator.chat(connection, headers={"X-Simulate": "status=0"}, max_tokens=1)[0]
            for _ in range(50)
        ]
        assert set(told) == {200}
        connection.close()
