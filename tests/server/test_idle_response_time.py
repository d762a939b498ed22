"""Response time: one request as the load has them is timed before it, and warms no cache."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.tiny_server import Asked, TinyServer, tiny_server

from locust_llm.records.run_facts import ResponseTime
from locust_llm.server.discovery import discover_server
from locust_llm.server.idle_response_time import choose_typical_request, measure_response_time
from locust_llm.settings.run_options import Settings
from locust_llm.workload.prompt_length_model import PromptLengthModel

LINE = PromptLengthModel(tokens_a_word=1.0, template_tokens=0.0)


@pytest.fixture
def server() -> Iterator[TinyServer]:
    with tiny_server() as server:
        yield server


class StepClock:
    """A second passes between two looks."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def measure(server: TinyServer, **settings: Any) -> ResponseTime | None:
    known = Settings(host=server.url, **{"users": 4, **settings})
    found = discover_server(
        known,
        {},
        clock=StepClock(),
        sleep=lambda s: None,
        times_response=known.spreads_start,
    )
    return found.response_time


def timed(server: TinyServer) -> list[Asked]:
    """Requests as long as the load's at both ends."""
    asked_for_128 = [asked for asked in server.asked if asked.body.get("max_tokens") == 128]
    return [
        asked for asked in asked_for_128 if len(asked.body["messages"][0]["content"].split()) > 300
    ]


def test_one_request_of_the_lengths_of_the_load_is_timed(server: TinyServer) -> None:
    server.count = lambda text: len(text.split())
    assert measure(server) == ResponseTime(seconds=1.0)
    first, second = timed(server)
    for asked in (first, second):
        assert len(asked.body["messages"][0]["content"].split()) == 550
        assert asked.body["stream"] is True
    assert first.body["messages"] != second.body["messages"]


@pytest.mark.parametrize(
    ("seconds", "found", "count"),
    [
        ((0.98, 0.24), 0.24, 2),  # the server was cold
        ((0.24, 0.24), 0.24, 2),
        ((11.0,), 11.0, 1),
    ],
)
def test_the_shorter_one_of_two_counts(
    seconds: tuple[float, ...], found: float, count: int
) -> None:
    looks = iter([at for one in seconds for at in (0.0, one)])
    asked = list[object]()
    probes: Any = SimpleNamespace(
        settings=Settings(users=4), send_as_load=lambda *what, **fields: asked.append(what) or True
    )
    measured = measure_response_time(probes, LINE, clock=lambda: next(looks))
    assert measured == ResponseTime(seconds=found)
    assert len(asked) == count


@pytest.mark.parametrize(
    "settings",
    [
        {"users": 1},
        {"users": None, "request_rate": 2.0},
        {"spawn_rate": 4.0},
        {"probe": False},
    ],
)
def test_nothing_is_timed_where_no_start_is_to_be_spread(
    server: TinyServer, settings: dict[str, Any]
) -> None:
    assert measure(server, **settings) is None
    assert timed(server) == []


def test_a_request_that_fails_is_no_measurement(server: TinyServer) -> None:
    def refuse_the_load(asked: Asked) -> tuple[int, Any]:
        if asked.body["max_tokens"] == 128:
            return 503, {"error": {"message": "busy"}}
        usage = {"prompt_tokens": 7, "completion_tokens": 1}
        choice = {"message": {"content": "yes"}, "finish_reason": "stop"}
        return 200, {"choices": [choice], "usage": usage}

    server.chat = refuse_the_load
    assert measure(server, streaming=False) is None


def test_the_middle_length_of_a_mix_is_typical() -> None:
    ask = choose_typical_request(Settings(seq_dist="100,10:45;200,20:10;300,30:45"), LINE)
    assert (ask.output_tokens, ask.input_tokens) == (20, 200)


def test_the_middle_row_of_a_dataset_is_typical_and_begins_with_words_of_its_own(
    tmp_path: Path,
) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"row {n}", "output_tokens": n} for n in (9, 1, 5)]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    ask = choose_typical_request(Settings(input_file=str(file)), LINE)
    assert ask.output_tokens == 5
    first = ask.messages[0]["content"]
    assert first.endswith(" row 5")
    assert first != "row 5"


def test_a_server_that_takes_longer_is_not_waited_for(server: TinyServer) -> None:
    def sleep_over_the_load(asked: Asked) -> tuple[int, Any]:
        if asked.body["max_tokens"] == 128:
            time.sleep(0.6)
        usage = {"prompt_tokens": 7, "completion_tokens": 1}
        choice = {"message": {"content": "yes"}, "finish_reason": "stop"}
        return 200, {"choices": [choice], "usage": usage}

    server.chat = sleep_over_the_load
    assert measure(server, streaming=False, run_time_s=1.0) == ResponseTime(seconds=0.1, cut=True)
