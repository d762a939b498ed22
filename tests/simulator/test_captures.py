"""The simulator beside real servers' bytes: event by event the same shape, and the same words where
it refuses."""

import json
from pathlib import Path

import pytest
from support.simulated import Simulator, started

CAPTURES = Path(__file__).parents[1] / "captures"
ASKED = {"max_tokens": 6, "stream_options": {"include_usage": True}}


def captured(name: str) -> tuple[int, bytes]:
    """Status and body."""
    head, _, body = (CAPTURES / f"{name}.http").read_bytes().partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def shapes(body: bytes) -> list[tuple[object, ...]]:
    """Of each event what a client may look at: where role and content are, how the content is
    empty, how many choices, finish_reason, and where usage is."""
    found: list[tuple[object, ...]] = []
    for line in body.splitlines():
        if not line.startswith(b"data: "):
            continue
        data = line.removeprefix(b"data: ")
        if data == b"[DONE]":
            found.append(("done",))
            continue
        chunk = json.loads(data)
        if "error" in chunk:
            found.append(("error", type(chunk["error"]).__name__))
            continue
        usage = tuple(
            sorted(
                {"prompt_tokens", "completion_tokens", "total_tokens"}
                & set(chunk.get("usage") or ())
            )
        )
        choices = chunk["choices"]
        if not choices:
            found.append(("no choice", usage))
            continue
        delta = choices[0]["delta"]
        content = delta.get("content", "absent")
        kind = "text" if content and content != "absent" else content
        found.append((delta.get("role"), kind, choices[0].get("finish_reason"), usage))
    return found


def test_shapes_tell_servers_apart() -> None:
    """Else the tests below would pass for nothing."""
    names = (
        "vllm_stream",
        "llamacpp_stream",
        "transformers_stream",
        "litellm_stream",
        "vllm_continuous_usage",
    )
    assert len({tuple(shapes(captured(name)[1])) for name in names}) == 5


@pytest.fixture(scope="module")
def server():
    with started(
        "--ttft-ms", "1", "--itl-ms", "1", "--served-model-name", "tiny", "--max-model-len", "1000"
    ) as simulator:
        yield simulator


@pytest.mark.parametrize(
    ("name", "like", "quirks", "asked"),
    [
        ("vllm_stream", "vllm", "", ASKED),
        ("vllm_no_usage", "vllm", "", {"max_tokens": 4}),
        ("vllm_immediate_stop", "vllm", "eos=0", ASKED),
        ("vllm_interval_10", "vllm", "tokens_per_chunk=10", {**ASKED, "max_tokens": 25}),
        (
            "vllm_continuous_usage", "vllm", "",
            {"max_tokens": 3, "stream_options": {"include_usage": True,
                "continuous_usage_stats": True}},
        ),
        ("llamacpp_stream", "llama.cpp", "", ASKED),
        ("llamacpp_no_usage", "llama.cpp", "", {"max_tokens": 4}),
        ("transformers_stream", "transformers", "", ASKED),
        ("litellm_stream", "litellm", "", ASKED),
    ],
)  # fmt: skip
def test_a_stream(name: str, like: str, quirks: str, asked: dict[str, object]) -> None:
    with started("--ttft-ms", "1", "--itl-ms", "1", "--like", like) as simulator:
        body, ended = simulator.stream(quirks, **asked)
    assert ended
    assert shapes(body) == shapes(captured(name)[1])


@pytest.mark.parametrize(
    ("name", "like", "quirks", "last"),
    [
        ("vllm_killed", "vllm", "error=3", 2),
        ("transformers_stream_error", "transformers", "error=0", 1),
    ],
)
def test_an_error_in_a_stream(name: str, like: str, quirks: str, last: int) -> None:
    with started("--ttft-ms", "1", "--itl-ms", "1", "--like", like) as simulator:
        body, ended = simulator.stream(quirks, max_tokens=9)
    assert ended
    assert shapes(body)[-last:] == shapes(captured(name)[1])[-last:]
    assert shapes(body)[0] == shapes(captured(name)[1])[0]


def test_an_unknown_model(server: Simulator) -> None:
    status, body = captured("vllm_unknown_model")
    assert server.chat(model="nope") == (status, json.loads(body))


def test_without_a_key() -> None:
    status, body = captured("vllm_no_key")
    with started("--api-key", "sk-x") as simulator:
        assert simulator.chat() == (status, json.loads(body))


def test_a_full_queue() -> None:
    status, body = captured("vllm_busy")
    with started("--max-num-queued-tokens", "0") as simulator:
        assert simulator.chat() == (status, json.loads(body))


def test_an_answer_in_one_piece(server: Simulator) -> None:
    """What is there is as vLLM has it; what vLLM has besides is null."""
    real, ours = json.loads(captured("vllm_whole")[1]), server.chat(max_tokens=6)[1]
    assert set(ours) <= set(real)
    (theirs,), (choice,) = real["choices"], ours["choices"]
    assert set(choice) <= set(theirs)
    assert set(choice["message"]) <= set(theirs["message"])
    assert all(theirs[key] is None for key in set(theirs) - set(choice))
    assert all(
        theirs["message"][key] is None for key in set(theirs["message"]) - set(choice["message"])
    )
    assert (choice["finish_reason"], choice["message"]["role"]) == (
        theirs["finish_reason"],
        theirs["message"]["role"],
    )
