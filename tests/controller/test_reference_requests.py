"""Reference requests: when they are sent, which are left out, and what is noted, in virtual time
against a server that answers at once."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from support import unpatched_locust  # noqa: F401  before the rest
from support.tiny_server import Asked, TinyServer, tiny_server
from support.virtual_time import VirtualTime

from locust_llm.answers.reference_answer import AFTER_LOAD, IDLE, UNDER_LOAD, ReferenceAnswer
from locust_llm.answers.reference_prompts import BUILT_IN_PROMPTS
from locust_llm.answers.session_markers import MarkerKey
from locust_llm.controller.answer_tally import AnswerTally
from locust_llm.controller.block_runner import BlockRunner
from locust_llm.controller.reference_requests import ReferenceRequests
from locust_llm.records.phase_plan import BETWEEN, PROFILING
from locust_llm.records.reference_answers_file import REFERENCE_ANSWERS, read_reference_answers
from locust_llm.server.discovery import Discovery
from locust_llm.settings.run_options import Settings

PROMPTS = len(BUILT_IN_PROMPTS)
KEY = b"0123456789abcdef"
DOWN = (503, {"error": {"message": "down"}})


@pytest.fixture
def server() -> Iterator[TinyServer]:
    with tiny_server() as server:
        yield server


class Run:
    """A run without users: its store, its phase, and its reference requests."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.time = VirtualTime()
        self.folder = folder
        self.notes: list[str] = []
        self.answered = 0
        self.store = SimpleNamespace(
            draining=False, add_note=self._add_note, marker_key=KEY,
            answer_tally=AnswerTally(self.time.source.now),
        )  # fmt: skip
        self.phases: Any = SimpleNamespace(
            plan=SimpleNamespace(phase=PROFILING), sends=SimpleNamespace(open=5), stages=None
        )
        context: Any = SimpleNamespace(
            settings=Settings(check_answers=True, **settings), survey=Discovery(model="tiny"),
            store=self.store, time=self.time.source, folder=folder, spawn=gevent.spawn,
        )  # fmt: skip
        self.references = ReferenceRequests(context, self.phases, {}, {})

    def _add_note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def answers(self, asked: str = "") -> list[ReferenceAnswer]:
        found, unread = read_reference_answers(self.folder)
        assert unread == 0
        return [answer for answer in found if asked in ("", answer.asked)]

    def load(self, seconds: int) -> None:
        """A load of so many seconds."""
        self.references.start()
        for _ in range(seconds):
            self._until_it_sleeps()
            self.time.advance(1.0)
        self._until_it_sleeps()
        self.store.draining = True
        self.time.advance(1.0)

    def _until_it_sleeps(self) -> None:
        """Its answer comes over a real socket."""
        if self.references._loop is None:
            return
        with gevent.Timeout(5):
            while not self.time._sleepers:
                gevent.sleep(0.001)


@pytest.fixture
def run(tmp_path: Path, server: TinyServer) -> Iterator[Run]:
    made = Run(tmp_path, host=server.url, streaming=True)
    yield made
    made.references.close()


def test_idle_then_beside_the_load_then_once_more(run: Run, server: TinyServer) -> None:
    run.references.ask_idle_server()
    idle = run.answers(IDLE)
    assert Counter(answer.prompt for answer in idle) == dict.fromkeys(range(PROMPTS), 4)
    assert Counter(answer.streamed for answer in idle) == {True: 3 * PROMPTS, False: PROMPTS}
    run.load(20)
    loaded = run.answers(UNDER_LOAD)
    assert 18 <= len(loaded) <= 21
    assert [answer.streamed for answer in loaded[:4]] == [True, False, True, False]
    assert {answer.in_flight for answer in loaded} == {5}
    starts = [answer.sent_at for answer in loaded]
    assert min(b - a for a, b in pairwise(starts)) >= 1.0 - 1e-6
    run.references.ask_after_load()
    assert [answer.prompt for answer in run.answers(AFTER_LOAD)] == [*range(PROMPTS)]
    assert run.notes == []
    assert {asked.headers["x-locust-llm-probe"] for asked in server.asked} == {"1"}


def test_a_marker_in_a_reference_answer_is_a_leak(run: Run, server: TinyServer) -> None:
    marker = MarkerKey(KEY, 7).make()
    message = {"role": "assistant", "content": f"It was {marker.text}."}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    server.chat = lambda asked: (200, {"id": "r", "model": "tiny", "choices": choices})
    run.references.ask_idle_server()
    answers = run.answers(IDLE)
    assert answers
    assert all(answer.faults[:1] == ("foreign_marker",) for answer in answers)
    assert run.store.answer_tally.isolation.all_leaks == len(answers)


def test_every_prompt_is_asked_in_both_ways_in_its_turn(run: Run) -> None:
    run.references.ask_idle_server()
    run.load(2 * PROMPTS + 1)
    ways = {(answer.prompt, answer.streamed) for answer in run.answers(UNDER_LOAD)}
    assert len(ways) == 2 * PROMPTS


def test_between_two_stages_nothing_is_asked(run: Run) -> None:
    run.references.ask_idle_server()
    run.phases.plan.phase = BETWEEN
    run.load(5)
    assert run.answers(UNDER_LOAD) == []


def test_a_server_that_is_down_when_idle_is_noted_and_left_alone(
    run: Run, server: TinyServer
) -> None:
    server.chat = lambda asked: DOWN
    run.references.ask_idle_server()
    assert len(run.answers(IDLE)) == 3
    assert run.notes == [
        "WARNING: the idle server answered no reference prompt, so answers under load cannot be "
        "compared with idle ones: HTTP 503: down"
    ]
    server.chat = None
    run.load(5)
    run.references.ask_after_load()
    assert len(run.answers()) == 3


@pytest.mark.parametrize(
    ("answer_s", "prompts", "asked", "notes"),
    [
        # 30 s / (4 * 1.9 s) is 3.9
        (
            1.9, 3, 12,
            ["reference prompts: 3 of 8 are asked, as an answer takes 1.9 s and each is asked 4 "
             "times in 30 s"],
        ),
        # behind the first, the fourth begins at 27 s and may end
        (
            9.0, 2, 5,
            ["reference prompts: 2 of 8 are asked, as an answer takes 9 s and each is asked 4 "
             "times in 30 s",
             "reference prompts: 3 of 8 idle requests were left out, as 30 s were over"],
        ),
    ],
)  # fmt: skip
def test_a_slow_server_is_asked_fewer_prompts_and_for_30_seconds_at_most(
    run: Run, server: TinyServer, answer_s: float, prompts: int, asked: int, notes: list[str]
) -> None:
    def answer(asked: Asked) -> tuple[int, Any]:
        run.time.at += answer_s
        return 200, {"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}]}

    server.chat = answer
    run.references.ask_idle_server()
    idle = run.answers(IDLE)
    assert (len({answer.prompt for answer in idle}), len(idle)) == (prompts, asked)
    assert run.notes == notes


def test_a_cold_server_may_take_longer_for_its_first_answer(run: Run, server: TinyServer) -> None:
    """What it compiles then is no reason to ask fewer prompts."""

    def answer(asked: Asked) -> tuple[int, Any]:
        run.time.at += 0.5 if run.answered else 65.0
        run.answered += 1
        return 200, {"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}]}

    server.chat = answer
    run.references.ask_idle_server()
    assert len(run.answers(IDLE)) == 4 * PROMPTS
    assert run.notes == []


def test_a_refused_prompt_is_left_out_under_load(run: Run, server: TinyServer) -> None:
    def answer(asked: Asked) -> tuple[int, Any]:
        if "tools" in asked.body:
            return 400, {"error": {"message": "no tools here"}}
        return 200, {"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}]}

    server.chat = answer
    run.references.ask_idle_server()
    run.load(2 * PROMPTS + 4)
    assert "tool" not in {answer.kind for answer in run.answers(UNDER_LOAD)}
    assert run.notes == [
        f"reference prompts: 1 of {PROMPTS} are left out, as the idle server did not answer them: "
        "HTTP 400: no tools here"
    ]


def test_a_server_without_streams_is_asked_for_whole_answers_alone(
    run: Run, server: TinyServer
) -> None:
    def answer(asked: Asked) -> tuple[int, Any]:
        if not asked.body.get("stream"):
            return 404, {"error": {"message": "streams only"}}
        return 200, [{"choices": [{"delta": {"content": "yes"}, "finish_reason": "stop"}]}]

    server.chat = answer
    run.references.ask_idle_server()
    run.load(6)
    assert {answer.streamed for answer in run.answers(UNDER_LOAD)} == {True}


def test_a_second_interrupt_ends_all_questions(run: Run) -> None:
    run.references.ask_idle_server()
    run.load(3)
    run.references.hurry()
    run.references.ask_after_load()
    assert run.answers(AFTER_LOAD) == []


def test_without_a_load_nothing_is_asked_after_it(run: Run) -> None:
    run.references.ask_idle_server()
    run.references.ask_after_load()
    assert run.answers(AFTER_LOAD) == []


def test_a_run_that_does_not_begin_leaves_no_file(run: Run) -> None:
    run.references.close()
    assert not (run.folder / REFERENCE_ANSWERS).exists()


def test_replicas_are_asked_and_named_each(tmp_path: Path, server: TinyServer) -> None:
    with tiny_server() as other:
        made = Run(tmp_path, host=server.url, hosts=(server.url, other.url))
        made.references.ask_idle_server()
        made.references.close()
    counts = Counter(answer.server for answer in made.answers())
    assert counts == {server.url: 4 * PROMPTS, other.url: 4 * PROMPTS}


def test_each_arm_is_asked_in_its_own_blocks(tmp_path: Path, server: TinyServer) -> None:
    class Blocks(BlockRunner):
        block: Any = SimpleNamespace(arm="base")

    with tiny_server() as other:
        made = Run(tmp_path, host=server.url, candidate=other.url, run_time_s=60.0)
        made.phases.stages = Blocks.__new__(Blocks)
        made.references.ask_idle_server()
        made.load(6)
        made.references.close()
    assert Counter(answer.server for answer in made.answers(IDLE)) == {
        "base": 4 * PROMPTS, "candidate": 4 * PROMPTS,
    }  # fmt: skip
    assert {answer.server for answer in made.answers(UNDER_LOAD)} == {"base"}
