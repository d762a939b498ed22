"""Answer results: whether every session got its own answers, whether answers are those of the idle
server, and what was wrong in single answers.

A swapped answer shows only if it has the marker of its session, so the share of answers with their
own marker is the sensitivity. No leak in n answers with sensitivity s bounds the share of swapped
answers: with 1 - 0.05^(1 / (n s)) or more of them, 95 of 100 such runs would show one.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

import msgspec

from locust_llm.answers.compare_answers import ComparedAnswer, compare_with_idle
from locust_llm.answers.fault_names import DUPLICATE_ID, FAULT_SENTENCES, FOREIGN_MARKER
from locust_llm.answers.mismatch_rates import (
    IDLE_SERVER,
    LOADED_SERVER,
    MismatchRate,
    RequestEnds,
    compute_mismatch_rates,
    find_rate,
)
from locust_llm.answers.reference_answer import AFTER_LOAD, IDLE, ReferenceAnswer
from locust_llm.records.answer_checks import AnswerChecks
from locust_llm.records.outcomes import CANCELLED, CUT, OK, RETRIED
from locust_llm.records.record import Record
from locust_llm.records.run_facts import Run
from locust_llm.text.format import clean_line, format_count

CONFIDENCE: Final = 0.95
SIGNIFICANT: Final = 0.05
LEAST_SENSITIVITY: Final = 0.01
"""With a smaller share of answers that have their own marker, leaks could hardly be seen."""
MAX_SHOWN: Final = 20
"""The differences that are shown with their texts."""
BEFORE: Final = 30
BEHIND: Final = 70
"""The characters that are shown before and behind the first difference."""
FIRST_DIFFERENCE: Final = "▸"


class AnswerIsolation(msgspec.Struct, frozen=True, kw_only=True):
    """Whether answers hold the session markers of others."""

    answers: int
    """The searched answers."""
    marked: int
    """Those whose own session has a marker."""
    asked: int
    """Those whose request asked for the marker."""
    asked_repeated: int
    """How many of these have it."""
    repeated: int
    """All answers that have their own marker."""
    leaks: int
    """The answers with a foreign marker."""
    reference_leaks: int = 0
    """The reference answers with one."""
    faults: dict[str, int] = {}
    """How many answers had each fault, by its name."""

    @property
    def sensitivity(self) -> float:
        """The share of answers that have their own marker: a swapped one would show."""
        return self.repeated / self.answers if self.answers else 0.0

    @property
    def all_leaks(self) -> int:
        return self.leaks + self.reference_leaks

    @property
    def has_evidence(self) -> bool:
        """A worker wrote down a wrong answer. Equal ids show only among all answers, and reference
        answers have a file of their own."""
        return bool(self.leaks or self.faults.keys() - {DUPLICATE_ID})

    @property
    def most_swapped(self) -> float | None:
        """Without a leak, at most this share of answers was swapped, with 95 % confidence. None:
        there is no bound."""
        if self.all_leaks or not self.repeated:
            return None
        return float(1 - (1 - CONFIDENCE) ** (1 / self.repeated))


class ShownDifference(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that differs from the idle one, with the text around the first difference."""

    prompt: int
    """From 1."""
    question: str = ""
    """The begin of the prompt."""
    situation: str
    size: str
    """See AnswerDifference."""
    margin: float | None
    idle_text: str
    text: str
    broken: tuple[str, ...] = ()


class MarkedPrompts(msgspec.Struct, frozen=True, kw_only=True):
    """What session markers change in prompts."""

    marker_tokens: float | None
    """The tokens of a marker, as the server counts. None: unknown."""
    replayed: bool
    """Replayed prompts are longer by a marker. False: it is part of the requested length."""
    cached_share: float | None
    """The cached share of their tokens, by the answers. None: unknown."""


class ReferenceComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The answers to reference prompts."""

    prompts: int
    """The prompts with an idle answer."""
    sent: int
    failed: int
    without: tuple[str, ...] = ()
    """The fields that the server refused."""
    faults: dict[str, int] = {}
    """How many reference answers had each fault, by its name."""
    rates: tuple[MismatchRate, ...] = ()
    differences: tuple[ShownDifference, ...] = ()
    more_differences: int = 0
    """The differences that are not shown."""


class AnswersUnderLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Whether answers were right under load."""

    isolation: AnswerIsolation
    marked: MarkedPrompts | None = None
    """None: no answered prompt has a marker."""
    references: ReferenceComparison | None = None
    """None: no reference prompt was asked."""

    @property
    def is_alarming(self) -> bool:
        """An answer was wrong, or the load makes answers differ."""
        if self.isolation.all_leaks or self.isolation.faults:
            return True
        references = self.references
        return references is not None and (
            bool(references.faults) or is_worse_under_load(references)
        )


class IsolationCounts:
    """Counts the checks of answers, one by one."""

    def __init__(self, *, most_ids: int | None = None) -> None:
        """``most_ids``: a duplicate id is found among so many answers. None: among all."""
        self._counts = Counter[str]()
        self._faults = Counter[str]()
        self._ids = dict[int, int]()
        """How often each response id came, in the order of the first ones."""
        self._most_ids = most_ids

    def add(self, checks: AnswerChecks) -> None:
        self._faults.update(set(checks.faults))
        if checks.id_hash is not None:
            self._add_id(checks.id_hash)
        if not checks.searched:
            return
        counts = self._counts
        counts["answers"] += 1
        counts["marked"] += checks.marker is not None
        counts["asked"] += checks.asked
        counts["asked_repeated"] += checks.asked and checks.repeated
        counts["repeated"] += checks.repeated
        counts["leaks"] += bool(checks.foreign)

    def _add_id(self, id_hash: int) -> None:
        """All answers with the same id are counted, the first one too."""
        times = self._ids.get(id_hash, 0) + 1
        self._ids[id_hash] = times
        if times > 1:
            self._faults[DUPLICATE_ID] += 2 if times == 2 else 1
        if self._most_ids is not None and len(self._ids) > self._most_ids:
            del self._ids[next(iter(self._ids))]

    def summarise(self, reference_leaks: int = 0) -> AnswerIsolation:
        counts = self._counts
        return AnswerIsolation(
            answers=counts["answers"],
            marked=counts["marked"],
            asked=counts["asked"],
            asked_repeated=counts["asked_repeated"],
            repeated=counts["repeated"],
            leaks=counts["leaks"],
            reference_leaks=reference_leaks,
            faults=order_faults(self._faults),
        )


def measure_isolation(records: Iterable[Record]) -> AnswerIsolation:
    """Count the checks of all answers, of the warmup too."""
    counts = IsolationCounts()
    for record in records:
        if record.answer is not None:
            counts.add(record.answer)
    return counts.summarise()


def measure_marked_prompts(records: Iterable[Record], run: Run) -> MarkedPrompts | None:
    """None: no answered prompt has a marker."""
    has_marker = False
    cached = tokens = 0
    for record in records:
        if record.answer is None or record.answer.marker is None or record.outcome != OK:
            continue
        has_marker = True
        if record.cached_tokens is not None and record.input_tokens is not None:
            cached += record.cached_tokens
            tokens += record.input_tokens
    if not has_marker:
        return None
    return MarkedPrompts(
        marker_tokens=run.marker_tokens,
        replayed=run.settings.mark_replayed,
        cached_share=cached / tokens if tokens else None,
    )


def compare_references(
    answers: Sequence[ReferenceAnswer], records: Iterable[Record]
) -> ReferenceComparison | None:
    """``records`` are those of the load, which show what was cancelled or retried. None: there are
    no answers."""
    if not answers:
        return None
    cancelled = list[float]()
    retried = list[float]()
    for record in records:
        if record.outcome in (CANCELLED, CUT):
            cancelled.append(record.closed_unix_s)
        elif record.outcome == RETRIED:
            retried.append(record.closed_unix_s)
    compared = [*compare_with_idle(answers)]
    different = [one for one in compared if one.difference is not None]
    different.sort(key=_rank)
    faults = Counter[str]()
    for one in compared:
        faults.update(set(one.list_faults()))
    idle = {(one.server, one.prompt) for one in answers if one.asked == IDLE and not one.error}
    return ReferenceComparison(
        prompts=len({prompt for _, prompt in idle}),
        sent=len(answers),
        failed=sum(bool(answer.error) for answer in answers),
        without=tuple(sorted(set(chain.from_iterable(answer.without for answer in answers)))),
        faults=order_faults(faults),
        rates=compute_mismatch_rates(compared, RequestEnds(cancelled), RequestEnds(retried)),
        differences=tuple(map(_show, different[:MAX_SHOWN])),
        more_differences=max(0, len(different) - MAX_SHOWN),
    )


def order_faults(faults: Counter[str]) -> dict[str, int]:
    """The gravest fault first."""
    known = {name: faults[name] for name in FAULT_SENTENCES if faults[name]}
    return known | dict(faults)


def select_answers(answers: Iterable[ReferenceAnswer], run: Run) -> list[ReferenceAnswer]:
    """The answers of a run, or of a stage: the idle ones, and those that were asked in its time."""
    stage = run.stage
    if stage is None:
        return [*answers]
    return [
        answer
        for answer in answers
        if answer.asked == IDLE or stage.began_at <= answer.sent_at <= stage.ended_at
    ]


def _rank(one: ComparedAnswer) -> tuple[bool, bool, float]:
    """What counts comes first, with the widest margin first."""
    assert one.difference is not None
    margin = one.difference.margin
    return not one.difference.is_mismatch, margin is None, -(margin or 0.0)


def _show(one: ComparedAnswer) -> ShownDifference:
    assert one.difference is not None
    at = one.difference.at_character
    return ShownDifference(
        prompt=one.answer.prompt + 1,
        question=one.answer.question,
        situation=_describe_situation(one.answer),
        size=one.difference.size,
        margin=one.difference.margin,
        idle_text=_cut_out(one.idle.whole_text, at),
        text=_cut_out(one.answer.whole_text, at),
        broken=one.difference.broken,
    )


def _cut_out(text: str, at: int) -> str:
    """The text around a place, which is marked."""
    begin = max(0, at - BEFORE)
    before = clean_line(("… " if begin else "") + text[begin:at] + "|")[:-1]
    behind = clean_line(text[at : at + BEHIND] or "(end)")
    more = " …" if len(text) > at + BEHIND else ""
    return f"{before}{FIRST_DIFFERENCE}{behind}{more}"


def _describe_situation(answer: ReferenceAnswer) -> str:
    when = {IDLE: "idle", AFTER_LOAD: "after the load"}.get(
        answer.asked, f"{format_count(answer.in_flight, 'request')} in flight"
    )
    parts = [when, "streamed" if answer.streamed else "not streamed"]
    if answer.cached_tokens is not None:
        parts.append("warm cache" if answer.cached_tokens else "cold cache")
    return ", ".join([*filter(None, [answer.server]), *parts])


def describe_foreign_markers(isolation: AnswerIsolation) -> str:
    """Where foreign markers were found, as a part of a sentence."""
    where = list[str]()
    if isolation.leaks:
        where.append(f"{isolation.leaks:,} of {isolation.answers:,} answers")
    if isolation.reference_leaks:
        where.append(format_count(isolation.reference_leaks, "reference answer"))
    verb = "contains" if isolation.all_leaks == 1 else "contain"
    return f"{' and '.join(where)} {verb} the session marker of another session"


def is_worse_under_load(references: ReferenceComparison) -> bool:
    """More answers differ than chance allows, or some by a wide margin, which none did idle."""
    load = find_rate(references.rates, LOADED_SERVER)
    idle = find_rate(references.rates, IDLE_SERVER)
    if load is None or idle is None:
        return False
    new_ones = load.wide > 0 and not idle.wide
    return new_ones or (load.p is not None and load.p < SIGNIFICANT)


def find_answer_results(
    run: Run, records: Iterable[Record], references: Iterable[ReferenceAnswer]
) -> AnswersUnderLoad | None:
    """The results of a run, or of a stage. None: answers were not checked."""
    if not run.settings.check_answers:
        return None
    isolation = measure_isolation(records)
    compared = compare_references(select_answers(references, run), records)
    if compared is not None:
        leaks = compared.faults.get(FOREIGN_MARKER, 0)
        isolation = msgspec.structs.replace(isolation, reference_leaks=leaks)
    marked = measure_marked_prompts(records, run)
    return AnswersUnderLoad(isolation=isolation, marked=marked, references=compared)
