"""A real simulator over real sockets: vLLM's bytes, and a truth that fits them."""

import json
import re
import socket
import time

import pytest
from support.simulated import CHAT, HELLO, events, post, received, started

from locust_llm.simulator.openai_chat import NAME
from locust_llm.simulator.scheduling.step_cost import LLAMA_8B_H100, step_duration_s


@pytest.fixture(scope="module")
def fixed():
    with started(
        "--ttft-ms", "30", "--itl-ms", "3", "--truth", "full", "--max-model-len", "1000"
    ) as simulator:
        yield simulator


@pytest.fixture(scope="module")
def batching():
    with started() as simulator:
        yield simulator


def test_a_stream_looks_like_vllms(fixed):
    connection = fixed.connect()
    body = {"model": "llama-3.1-8b", "messages": HELLO, "max_tokens": 3, "stream": True}
    connection.request(
        "POST", CHAT, json.dumps({**body, "stream_options": {"include_usage": True}})
    )
    answer = connection.getresponse()
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["Transfer-Encoding"] == "chunked"
    assert answer.headers["Server"] == NAME

    *chunks, done = events(answer.read())
    assert done == b"[DONE]"
    role, *content, usage = map(json.loads, chunks)
    assert {chunk["id"] for chunk in (role, *content, usage)} == {role["id"]}
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in (role, *content, usage))
    assert all(chunk["system_fingerprint"] == NAME for chunk in (role, *content, usage))
    assert all(chunk["model"] == "llama-3.1-8b" for chunk in (role, *content, usage))
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [chunk["choices"][0]["finish_reason"] for chunk in content] == [None, None, "length"]
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in content)
    assert re.fullmatch(r"[a-z]+ [a-z]+ [a-z]+", text)
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 12,
        "total_tokens": 15,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    connection.close()


def test_headers_come_before_the_first_token_and_the_role_with_it(fixed):
    with fixed.raw(
        post(json.dumps({"messages": HELLO, "stream": True, "max_tokens": 1}).encode())
    ) as connection:
        first, second = connection.recv(65536), connection.recv(65536)
    assert first.endswith(b"\r\n\r\n")
    assert b"data:" not in first
    assert second.index(b'"role":"assistant"') < second.index(b'"finish_reason":"length"')


def test_without_include_usage_there_is_none(fixed):
    connection = fixed.connect()
    connection.request(
        "POST", CHAT, json.dumps({"messages": HELLO, "max_tokens": 1, "stream": True})
    )
    assert len(events(connection.getresponse().read())) == 3  # role, token, [DONE]
    connection.close()


def test_an_answer_in_one_piece(fixed):
    status, answer = fixed.chat(max_completion_tokens=5, max_tokens=99)
    assert status == 200
    assert (answer["object"], answer["system_fingerprint"]) == ("chat.completion", NAME)
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["role"] == "assistant"
    assert len(choice["message"]["content"].split()) == 5
    assert answer["usage"]["completion_tokens"] == 5


TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {}}}]


def test_a_tool_is_called_in_one_piece_and_in_a_stream(fixed):
    (choice,) = fixed.chat(tools=TOOLS, max_tokens=3)[1]["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert (choice["finish_reason"], choice["message"]["content"], call["function"]["name"]) == (
        "tool_calls",
        None,
        "look_up",
    )
    assert len(json.loads(call["function"]["arguments"])["text"].split()) == 3

    stream, whole = fixed.stream(tools=TOOLS, max_tokens=3)
    assert whole
    *found, done = events(stream)
    assert done == b"[DONE]"
    choices = [json.loads(event)["choices"][0] for event in found]
    calls = [
        choice["delta"]["tool_calls"][0] for choice in choices if "tool_calls" in choice["delta"]
    ]
    assert (calls[0]["function"]["name"], calls[0]["type"], len(calls)) == (
        "look_up",
        "function",
        1 + 3,
    )
    arguments = json.loads("".join(call["function"]["arguments"] for call in calls))
    assert len(arguments["text"].split()) == 3
    assert choices[-1]["finish_reason"] == "tool_calls"


def test_the_answer_to_a_tool_is_text(fixed):
    given = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "tool", "content": "nothing"},
    ]
    for more in ({"messages": given}, {"tool_choice": "none"}):
        (choice,) = fixed.chat(tools=TOOLS, max_tokens=3, **more)[1]["choices"]
        assert len(choice["message"]["content"].split()) == 3
    assert fixed.chat(tools=[{"type": "function"}])[0] == 400


def test_max_tokens_is_128_unless_said(fixed):
    assert fixed.chat()[1]["usage"]["completion_tokens"] == 128
    long = [{"role": "user", "content": "word " * 900}]
    assert fixed.chat(messages=long)[1]["usage"] == {
        "prompt_tokens": 910,
        "total_tokens": 1000,
        "completion_tokens": 90,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_the_small_routes(fixed):
    assert fixed.call("GET", "/health") == (200, {"status": "ok", "server": NAME})
    status, answer = fixed.call("GET", "/v1/models?x=1")
    assert status == 200
    (card,) = answer["data"]
    assert (card["id"], card["owned_by"], card["max_model_len"]) == ("llama-3.1-8b", NAME, 1000)


def test_of_several_names_all_are_listed_and_accepted_and_answers_carry_the_first():
    with started(
        "--served-model-name", "big", "alias", "--ttft-ms", "1", "--itl-ms", "1"
    ) as simulator:
        assert [card["id"] for card in simulator.call("GET", "/v1/models")[1]["data"]] == [
            "big",
            "alias",
        ]
        for name in ("big", "alias", None):
            status, answer = simulator.chat(model=name, max_tokens=1)
            assert (status, answer["model"]) == (200, "big")
        body = {"model": "alias", "messages": HELLO, "max_tokens": 1, "stream": True}
        connection = simulator.connect()
        connection.request("POST", CHAT, json.dumps(body))
        assert json.loads(events(connection.getresponse().read())[0])["model"] == "big"
        assert (
            simulator.call("POST", "/tokenize", {"model": "alias", "prompt": "Hello there"})[1][
                "count"
            ]
            == 3
        )
        status, answer = simulator.chat(model="llama-3.1-8b")
        assert status == 404
        assert "Valid aliases: big, alias." in answer["error"]["message"]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "Hello there",
        "Antidisestablishmentarianism, 1234!\n\nü",
        [{"type": "text", "text": "two"}, {"type": "refusal", "refusal": "no"}],
    ],
)
def test_tokenize_agrees_with_usage(fixed, content):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}]
    _, told = fixed.call("POST", "/tokenize", {"messages": messages})
    assert told["count"] == len(told["tokens"])
    assert told["max_model_len"] == 1000
    assert fixed.chat(messages=messages, max_tokens=1)[1]["usage"]["prompt_tokens"] == told["count"]


def test_tokenize_a_prompt(fixed):
    assert fixed.call("POST", "/tokenize", {"prompt": "Hello there"})[1]["count"] == 3
    assert (
        fixed.call("POST", "/tokenize", {"prompt": "Hello there", "add_special_tokens": False})[1][
            "count"
        ]
        == 2
    )
    assert fixed.call("POST", "/tokenize", {"prompt": 5})[0] == 400


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (
            {"model": "nope", "messages": HELLO},
            404,
            "The model `nope` does not exist. Valid aliases: llama-3.1-8b.",
        ),
        (
            {"messages": [{"role": "user", "content": "w " * 991}]},
            400,
            "at least 1001 input tokens, which exceeds",
        ),
        (
            {"messages": HELLO, "max_tokens": 989},
            400,
            "no room for the 989 output tokens requested",
        ),
        (
            {"messages": HELLO, "max_tokens": 1001},
            400,
            "max_tokens=1001 cannot be greater than max_model_len=1000",
        ),
        ({"messages": HELLO, "max_tokens": 0}, 400, "max_tokens must be at least 1, got 0."),
        (
            {"messages": HELLO, "max_completion_tokens": -3},
            400,
            "max_completion_tokens must be at least 1, got -3.",
        ),
        ({"messages": HELLO, "max_tokens": "5"}, 400, "Input should be a valid int"),
        ({"messages": HELLO, "max_tokens": True}, 400, "Input should be a valid int"),
        ({"messages": HELLO, "n": 2}, 400, "n must be 1"),
        (
            {"messages": HELLO, "stream_options": {"include_usage": True}},
            400,
            "only be defined when `stream=True`",
        ),
        ({"stream": True}, 400, "Field required"),
        ({"messages": []}, 400, "Field required"),
        ({"messages": "hello"}, 400, "Input should be a valid list"),
        ({"messages": [{"content": "x"}]}, 400, "should have a role"),
        ({"messages": [{"role": "user", "content": 5}]}, 400, "string or list of parts"),
        ([1], 400, "valid dictionary"),
        (b'{"model":"tiny",', 400, "JSON decode error"),
        (b"\xff\xfe", 400, "JSON decode error"),
        (b"[" * 100_000, 400, "JSON decode error"),
        (b"", 400, "JSON decode error"),
    ],
)
def test_what_is_refused(fixed, body, status, message):
    got, answer = fixed.call("POST", CHAT, body)
    assert (got, answer["error"]["code"]) == (status, status)
    assert message in answer["error"]["message"]
    assert set(answer["error"]) == {"message", "type", "param", "code"}


def test_wrong_paths_and_methods(fixed):
    assert fixed.call("POST", "/v1/chat/completionz", {}) == (404, {"detail": "Not Found"})
    assert fixed.call("GET", CHAT) == (405, {"detail": "Method Not Allowed"})


def test_connections_are_kept(fixed):
    fixed.call("POST", "/truth/reset")
    connection = fixed.connect()
    for _ in range(3):
        assert fixed.chat(connection, max_tokens=2)[0] == 200
        assert fixed.chat(connection, max_tokens=0)[0] == 400
        connection.request(
            "POST", CHAT, json.dumps({"messages": HELLO, "max_tokens": 2, "stream": True})
        )
        assert connection.getresponse().read().endswith(b"[DONE]\n\n")
    told = fixed.truth()
    assert told["connections"] == 2  # this one, and the one that asked
    assert told["refused"] == 3
    assert len(told["requests"]) == 6
    connection.close()


def test_pipelined_requests_are_answered_in_turn(fixed):
    streamed, whole = (
        {"messages": HELLO, "max_tokens": 2, "stream": stream} for stream in (True, False)
    )
    health = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    data = received(
        fixed.raw(post(json.dumps(streamed).encode()) + post(json.dumps(whole).encode()) + health)
    )
    assert data.index(b"[DONE]") < data.index(b'"chat.completion"') < data.index(b'"status":"ok"')
    assert data.count(b"HTTP/1.1 200 OK") == 3


def test_a_request_in_pieces(fixed):
    data = post(json.dumps({"messages": HELLO, "max_tokens": 1}).encode(), b"Connection: close\r\n")
    connection = fixed.raw(b"")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for start in range(0, len(data), 7):
        connection.sendall(data[start : start + 7])
    assert b'"completion_tokens":1' in received(connection)


def test_http_1_0_and_expect_continue(fixed):
    body = json.dumps({"messages": HELLO, "max_tokens": 2, "stream": True}).encode()
    head, _, content = received(fixed.raw(post(body).replace(b"HTTP/1.1", b"HTTP/1.0"))).partition(
        b"\r\n\r\n"
    )
    assert b"chunked" not in head
    assert len(events(content)) == 4
    data = received(fixed.raw(post(body, b"Expect: 100-continue\r\nConnection: close\r\n")))
    assert data.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")


def test_what_is_no_http_is_refused_and_closed(fixed):
    data = received(fixed.raw(b"hello\r\n\r\n"))
    assert data.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"Connection: close\r\n" in data
    assert fixed.call("GET", "/health")[0] == 200


def test_the_truth_of_a_request(fixed):
    fixed.call("POST", "/truth/reset")
    connection = fixed.connect()
    body = {"messages": HELLO, "max_tokens": 3, "stream": True}
    sent_at = time.monotonic()
    connection.request("POST", CHAT, json.dumps(body), {"X-Request-Id": "my-1"})
    content = connection.getresponse().read()
    received_at = time.monotonic()
    assert b'"id":"chatcmpl-my-1"' in content
    row = fixed.row("my-1")
    assert (row["prompt_tokens"], row["max_tokens"], row["output_tokens"], row["aborted"]) == (
        12,
        3,
        3,
        False,
    )
    stamps = [stamp for pair in row["token_at"] for stamp in pair]
    in_order = [sent_at, row["arrived_at"], *stamps, row["done_at"]]
    assert in_order == sorted(in_order)
    # what the server notes after its last write may be later
    assert row["token_at"][-1][0] <= received_at
    assert row["first_at"] == row["token_at"][0]
    assert row["first_at"][0] - row["arrived_at"] >= 0.030
    assert row["token_at"][2][0] - row["arrived_at"] >= 0.036

    assert fixed.chat(connection, max_tokens=1)[1]["id"] == fixed.truth()["requests"][-1]["id"]
    told = fixed.truth()
    assert [n for _, n in told["prefilling_changes"]] == [0, 1, 0, 1, 0]
    assert (told["prefilling"], told["max_prefilling"]) == (0, 1)
    connection.close()


def test_max_prefilling_counts_those_before_their_first_token(fixed):
    fixed.call("POST", "/truth/reset")
    body = post(
        json.dumps({"messages": HELLO, "max_tokens": 4, "stream": True}).encode(),
        b"Connection: close\r\n",
    )
    for connection in [fixed.raw(body) for _ in range(5)]:
        assert received(connection).endswith(b"[DONE]\n\n\r\n0\r\n\r\n")
    assert fixed.truth()["max_prefilling"] == 5


@pytest.mark.serial
def test_a_step_takes_its_time_and_no_more(batching):
    decode_s = step_duration_s(LLAMA_8B_H100, [(12, 1)])
    batching.chat(max_tokens=60, headers={"X-Request-Id": "steps"})
    row = batching.row("steps")
    took = row["first_at"][0] - row["arrived_at"]
    assert 60 * decode_s <= took + 60e-6  # each of the 60 steps is at least as long
    assert took < 60 * decode_s + 0.3


def test_who_hangs_up_frees_the_sequence_at_once(batching):
    idle = {"running": 0, "waiting": 0, "used_blocks": 0}
    batching.call("POST", "/truth/reset")
    with batching.raw(
        post(json.dumps({"messages": HELLO, "max_tokens": 100_000, "stream": True}).encode())
    ) as gone:
        told = batching.until(
            lambda told: told["engine"]["running"] == 1 and told["prefilling"] == 0
        )
        assert told["engine"]["used_blocks"] >= 1  # of 16 tokens each, and it goes on
        assert gone.recv(100)
    told = batching.until(lambda told: told["engine"]["running"] == 0)
    assert told["engine"].items() >= idle.items()
    (row,) = told["requests"]
    assert row["aborted"]
    assert 1 <= row["output_tokens"] < 1000


def test_who_hangs_up_before_the_first_token_is_no_longer_prefilling():
    with started("--time-scale", "1000") as slow:  # a step takes seconds
        body = json.dumps({"messages": HELLO, "stream": True}).encode()
        connections = [slow.raw(post(body)) for _ in range(3)]
        told = slow.until(lambda told: told["prefilling"] == 3)
        assert [row["first_at"] for row in told["requests"]] == [None] * 3
        connections[0].close()
        connections[1].shutdown(socket.SHUT_WR)
        told = slow.until(lambda told: told["prefilling"] == 1)
        assert [row["aborted"] for row in told["requests"]] == [True, True, False]
        assert told["engine"]["running"] + told["engine"]["waiting"] == 1
        assert told["max_prefilling"] == 3
        slow.process.terminate()  # at once, in the middle of a step, the last stream is cut
        assert slow.process.wait(5) == 0
        assert not received(connections[2]).endswith(b"0\r\n\r\n")
        connections[1].close()


def test_idle_connections_are_closed():
    with started("--idle-close", "0.15", "--ttft-ms", "300", "--itl-ms", "0") as simulator:
        began = time.monotonic()
        assert received(simulator.raw(b"")) == b""
        assert time.monotonic() - began > 0.14
        connection = simulator.connect()
        asked_at = time.monotonic()
        assert simulator.chat(connection, max_tokens=1)[0] == 200  # an answer under way is not idle
        assert connection.sock.recv(1) == b""
        assert time.monotonic() - asked_at > 0.3 + 0.14
        connection.close()
