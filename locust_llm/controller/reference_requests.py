"""Reference requests: the controller's own requests with reference prompts: before the load, one at
a time beside it, and after it.

They are no requests of the load: they have no records, metrics or rules of their own, and add at most
one user. A prompt or a way to ask that no idle answer came from is not asked under load, as there
would be nothing to compare with.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from itertools import cycle, islice
from typing import Final

import gevent
from msgspec.structs import replace

from locust_llm.answers.fault_names import FOREIGN_MARKER
from locust_llm.answers.reference_answer import AFTER_LOAD, IDLE, UNDER_LOAD, ReferenceAnswer
from locust_llm.answers.reference_prompts import load_reference_prompts
from locust_llm.answers.session_markers import MarkerKey
from locust_llm.client.tls_settings import find_trusted_certificates
from locust_llm.files.buffered_file import BufferedFile
from locust_llm.records.phase_plan import BETWEEN, OVER
from locust_llm.records.reference_answers_file import REFERENCE_ANSWERS, format_reference_answer
from locust_llm.server.reference_target import AskedHow, ReferenceTarget
from locust_llm.server.server_survey import make_candidate_settings
from locust_llm.settings.ab_arms import BASE, CANDIDATE
from locust_llm.text.format import format_duration

from .block_runner import BlockRunner
from .phases import PhaseRunner
from .run_context import RunContext

logger = logging.getLogger("locust_llm")

IDLE_S: Final = 30.0
"""The longest time for all answers of the idle server, and again after the load."""
FIRST_ANSWER_S: Final = 120.0
"""The longest wait for the first answer of a server. Some compile what logprobs need only then, and
answer nobody meanwhile (vLLM on CPUs: a minute)."""
EVERY_S: Final = 1.0
"""Under load at most one reference request begins in this time."""
TIMEOUT_S: Final = 120.0
"""The longest wait for an answer under load."""
LAST_ANSWER_S: Final = 10.0
"""At the end of the load the open reference request has so much time."""
REPEATS: Final = 4
"""So often each prompt is asked of the idle server."""
LEAST_PROMPTS: Final = 2
MAX_FAILURES: Final = 3
"""After so many failed requests in a row an idle server counts as down."""
_Way = tuple[ReferenceTarget, int, bool]
"""(server, number of the prompt, streamed or not)."""


class ReferenceRequests:
    """The reference requests of one run."""

    def __init__(
        self,
        context: RunContext,
        phases: PhaseRunner,
        headers: Mapping[str, str],
        candidate_headers: Mapping[str, str],
    ) -> None:
        """``candidate_headers``: what the candidate gets beside ``headers``. Raises OSError, and
        ValueError for the file of prompts."""
        self._context, self._phases = context, phases
        self._settings, self._store, self._time = context.settings, context.store, context.time
        self._prompts = load_reference_prompts(self._settings.reference_file)
        self._markers = MarkerKey(self._store.marker_key)
        self._file: BufferedFile | None = None
        """None: nothing was asked yet. The folder of a run that does not begin stays empty."""
        self._used = len(self._prompts)
        """Only so many of them are asked, the first ones."""
        self._targets = [*_make_targets(context, headers, candidate_headers)]
        self._answered = list[_Way]()
        """The ways to ask that had an idle answer."""
        self._loop: gevent.Greenlet | None = None
        self._last: gevent.Greenlet | None = None

    # -- when they are sent ------------------------------------------------------------------------

    def ask_idle_server(self) -> None:
        """Ask every prompt of the idle server three times in the way of the load, a stream mostly,
        and once in the other, as far as the time allows."""
        logger.info(
            f"Reference prompts: {len(self._prompts)} are asked while the server is idle, for at "
            f"most {IDLE_S:g} s"
        )
        ways = [*self._list_idle_ways()]
        firsts = ways[: len(self._targets)]
        asked = left_out = failures = 0
        failed = ""
        until = math.inf
        for place, way in enumerate(ways):
            if place == len(firsts):  # the time begins once the server is warm
                until = self._time.monotonic() + IDLE_S
            left_s = min(until - self._time.monotonic(), FIRST_ANSWER_S)
            if way[1] >= self._used:
                continue
            if left_s <= 0 or failures >= MAX_FAILURES:
                left_out += 1
                continue
            began = self._time.monotonic()
            answer = self._ask(way, IDLE, left_s)
            if place == len(firsts):
                self._choose_prompts(self._time.monotonic() - began)
            asked += 1
            failures = failures + 1 if answer.error else 0
            failed = answer.error or failed
            if not answer.error and way not in self._answered:
                self._answered.append(way)
        self._flush()
        self._note_idle_answers(asked, left_out, failed)

    def start(self) -> None:
        """Ask beside the load from now on."""
        if self._answered:
            self._loop = self._context.spawn(self._ask_beside_load)

    def ask_after_load(self) -> None:
        """Ask each prompt once more, when the load is over."""
        if self._loop is None:
            return  # there was no load, or no idle answer
        self._loop.join(LAST_ANSWER_S)
        self._loop.kill()
        if not self._answered:
            return
        logger.info(f"Reference prompts: asked once more after the load, for at most {IDLE_S:g} s")
        self._last = gevent.spawn(self._ask_each_once)  # no failure of it may prevent the report
        self._last.join(IDLE_S)
        self._last.kill()

    def hurry(self) -> None:
        """Ask nothing any more."""
        self._answered.clear()
        for greenlet in (self._loop, self._last):
            if greenlet is not None:
                greenlet.kill(block=False)

    def close(self) -> None:
        for greenlet in (self._loop, self._last):
            if greenlet is not None:
                greenlet.kill(block=False)
        for target in self._targets:
            target.close()
        if self._file is not None:
            self._file.close()

    def _choose_prompts(self, answer_s: float) -> None:
        """Ask fewer prompts of a slow server, so that each of them is repeated."""
        each_s = REPEATS * len(self._targets) * max(answer_s, 1e-3)
        self._used = min(len(self._prompts), max(LEAST_PROMPTS, int(IDLE_S / each_s)))
        if self._used < len(self._prompts):
            self._store.add_note(
                f"reference prompts: {self._used} of {len(self._prompts)} are asked, as an answer "
                f"takes {format_duration(answer_s)} and each is asked {REPEATS} times in "
                f"{IDLE_S:g} s"
            )

    def _list_idle_ways(self) -> Iterator[_Way]:
        """All prompts once, then again: what the time does not allow is repeats."""
        streams = self._settings.streaming
        for streamed in (streams, streams, not streams, streams):
            for number in range(len(self._prompts)):
                for target in self._targets:
                    yield target, number, streamed

    def _ask_beside_load(self) -> None:
        ways = cycle(_alternate(self._answered))
        turns = len(self._answered)
        while not self._store.draining:
            began = self._time.monotonic()
            way = next((way for way in islice(ways, turns) if self._has_load(way[0])), None)
            if way is not None:
                self._ask(way, UNDER_LOAD, min(TIMEOUT_S, self._settings.request_timeout_s))
                self._flush()
            self._time.sleep(max(0.0, began + EVERY_S - self._time.monotonic()))

    def _ask_each_once(self) -> None:
        until = self._time.monotonic() + IDLE_S
        asked = set[tuple[str, int]]()
        for way in self._answered:
            target, number, _ = way
            left_s = until - self._time.monotonic()
            if left_s <= 0 or (target.name, number) in asked:
                continue
            asked.add((target.name, number))
            if self._ask(way, AFTER_LOAD, left_s).error:
                return
        self._flush()

    def _has_load(self, target: ReferenceTarget) -> bool:
        """Whether the load is on, and this server has it."""
        phases = self._phases
        if phases.plan.phase in (BETWEEN, OVER):
            return False
        if isinstance(phases.stages, BlockRunner) and target.name in (BASE, CANDIDATE):
            return phases.stages.block.arm == target.name
        return True

    # -- one request -------------------------------------------------------------------------------

    def _ask(self, way: _Way, asked: str, timeout_s: float) -> ReferenceAnswer:
        target, number, streamed = way
        in_flight = self._phases.sends.open if asked == UNDER_LOAD else 0
        how = AskedHow(asked, streamed, timeout_s, in_flight)
        answer = self._search(target.ask(number, self._prompts[number], how))
        if self._file is None:
            self._file = BufferedFile(self._context.folder / REFERENCE_ANSWERS)
        self._file.write(format_reference_answer(answer))
        if self._store.answer_tally is not None:
            self._store.answer_tally.add_reference(answer)
        for note in target.notes:
            self._store.add_note(note)
        return answer

    def _search(self, answer: ReferenceAnswer) -> ReferenceAnswer:
        """The answer, with a fault if it has the marker of a session: no reference prompt has
        one."""
        if not self._markers.find(answer.whole_text):
            return answer
        return replace(answer, faults=(FOREIGN_MARKER, *answer.faults))

    def _flush(self) -> None:
        """What the disk does not take stays in memory."""
        if self._file is not None:
            self._file.flush()

    def _note_idle_answers(self, asked: int, left_out: int, failed: str) -> None:
        """Note what the idle server did not answer."""
        if not self._answered:
            self._store.add_note(
                "WARNING: the idle server answered no reference prompt, so answers under load "
                f"cannot be compared with idle ones: {failed}"
            )
            return
        if left_out:
            self._store.add_note(
                f"reference prompts: {left_out} of {asked + left_out} idle requests were left out, "
                f"as {IDLE_S:g} s were over"
            )
        answered = {(target.name, number) for target, number, _ in self._answered}
        silent = {
            number
            for target, number, _ in self._list_idle_ways()
            if number < self._used and (target.name, number) not in answered
        }
        if silent:
            self._store.add_note(
                f"reference prompts: {len(silent)} of {self._used} are left out, as the idle "
                f"server did not answer them: {failed}"
            )


def _alternate(ways: list[_Way]) -> list[_Way]:
    """The prompts in turn, streamed and not streamed in turn, each server in turn."""
    streamed = [way for way in ways if way[2]]
    whole = [way for way in ways if not way[2]]
    order = list[_Way]()
    for place in range(max(len(streamed), len(whole))):
        order += [mode[place % len(mode)] for mode in (streamed, whole) if mode]
    return order


def _make_targets(
    context: RunContext, headers: Mapping[str, str], candidate_headers: Mapping[str, str]
) -> Iterator[ReferenceTarget]:
    """The servers of the run: one, two arms, or the replicas."""
    settings, survey = context.settings, context.survey
    verify: Callable[[], bool | str] = find_trusted_certificates
    now = context.time.now
    if settings.compares and not settings.same_server:
        other = survey.candidate or survey
        yield ReferenceTarget(
            settings, survey.model, survey.form, headers, name=BASE, verify=verify(), now=now
        )
        yield ReferenceTarget(
            make_candidate_settings(settings), other.model, other.form,
            headers, candidate_headers,
            name=CANDIDATE, body=settings.changes.body, verify=verify(), now=now,
        )  # fmt: skip
        return
    for address in settings.addresses:
        yield ReferenceTarget(
            replace(settings, host=address), survey.model, survey.form, headers,
            name=address if settings.hosts else "", verify=verify(), now=now,
        )  # fmt: skip
