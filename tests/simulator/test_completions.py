"""Plain completions: a prompt without roles, and text where a chat has a delta."""

import json

import pytest
from support.simulated import events, received, started

PLAIN = "/v1/completions"


@pytest.fixture(scope="module")
def server():
    with started(
        "--ttft-ms", "1", "--itl-ms", "1", "--served-model-name", "tiny", "--max-model-len", "1000"
    ) as simulator:
        yield simulator


def streamed(server, **body):
    """The JSON of each event; fails without [DONE]."""
    data = json.dumps({"stream": True, **body}).encode()
    head = b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data)
    *found, done = events(received(server.raw(head)).partition(b"\r\n\r\n")[2])
    assert done == b"[DONE]"
    return [json.loads(event) for event in found]


def test_a_stream_looks_like_vllms(server):
    asked = {"prompt": "Hello there", "max_tokens": 3, "stream_options": {"include_usage": True}}
    *content, usage = streamed(server, **asked)
    assert {chunk["object"] for chunk in (*content, usage)} == {"text_completion"}
    assert all(chunk["id"].startswith("cmpl-") for chunk in content)
    assert [chunk["choices"][0]["finish_reason"] for chunk in content] == [None, None, "length"]
    assert len("".join(chunk["choices"][0]["text"] for chunk in content).split()) == 3
    assert not any("delta" in chunk["choices"][0] for chunk in content)
    assert usage["choices"] == []
    assert (usage["usage"]["prompt_tokens"], usage["usage"]["completion_tokens"]) == (3, 3)


def test_an_answer_in_one_piece(server):
    status, answer = server.call("POST", PLAIN, {"prompt": [100, 101, 102, 103], "model": "tiny"})
    assert (status, answer["object"]) == (200, "text_completion")
    assert len(answer["choices"][0]["text"].split()) == 16  # vLLM's default here
    assert answer["usage"]["prompt_tokens"] == 4


def test_its_own_finish_chunk_and_reasoning_are_text(server):
    with started(
        "--ttft-ms", "0", "--itl-ms", "0", "--like", "llama.cpp", "--quirks", "reasoning=2"
    ) as other:
        content = streamed(other, prompt="Hello", max_tokens=3)
        assert [chunk["choices"][0]["finish_reason"] for chunk in content] == [None] * 3 + [
            "length"
        ]
        assert content[-1]["choices"][0]["text"] == ""
        assert len("".join(chunk["choices"][0]["text"] for chunk in content).split()) == 3
        whole = other.call("POST", PLAIN, {"prompt": "Hello", "max_tokens": 4})[1]
        assert len(whole["choices"][0]["text"].split()) == 4


def test_the_same_prompt_is_found_in_the_cache():
    with started() as simulator:
        for cached in (0, 48):
            usage = simulator.call("POST", PLAIN, {"prompt": "the river " * 30, "max_tokens": 1})[
                1
            ]["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] == cached


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "Field required"),
        ({"prompt": 5}, "valid string or list of token ids"),
        ({"prompt": []}, "valid string or list of token ids"),
        ({"prompt": ["two", "prompts"]}, "one prompt"),
        ({"prompt": "w " * 1000}, "at least 1001 input tokens"),
    ],
)
def test_what_is_refused(server, body, message):
    status, answer = server.call("POST", PLAIN, body)
    assert status == 400
    assert message in answer["error"]["message"]
