"""Answers under load: whether every session got its own answers, whether answers are those of the
idle server, and what was wrong in single answers; sentences and tables.

A swapped answer shows only if it has the marker of its session, so the share of answers with their
own marker is the sensitivity. No leak in n answers with sensitivity s bounds the share of swapped
answers: with 1 - 0.05^(1 / (n s)) or more of them, 95 of 100 such runs would show one.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

import msgspec

from locust_llm.answers.answer_integrity import find_duplicates
from locust_llm.answers.compare_answers import ComparedAnswer, compare_with_idle
from locust_llm.answers.fault_names import DUPLICATE_ID, FAULT_SENTENCES
from locust_llm.answers.mismatch_rates import (
    IDLE_SERVER,
    LOADED_SERVER,
    MismatchRate,
    RequestEnds,
    compute_mismatch_rates,
    find_rate,
)
from locust_llm.answers.reference_answer import AFTER_LOAD, IDLE, ReferenceAnswer
from locust_llm.records.outcomes import CANCELLED, CUT, RETRIED
from locust_llm.records.record import Record
from locust_llm.records.run_facts import Run
from locust_llm.report.document_blocks import Block, Heading, TableBlock, TextBlock
from locust_llm.text.format import clean_line, format_brief, format_count, format_number

from .section import ReportMaterial, ReportSection

ANSWERS: Final = "answers"
"""The name of the finding in run.json."""
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
    faults: dict[str, int] = {}
    """How many answers had each fault, by its name."""

    @property
    def sensitivity(self) -> float:
        """The share of marked answers that have their own marker: a swapped one would show."""
        return self.repeated / self.marked if self.marked else 0.0

    @property
    def most_swapped(self) -> float | None:
        """Without a leak, at most this share of answers was swapped, with 95 % confidence. None:
        there is no bound."""
        if self.leaks or not self.repeated:
            return None
        seen = self.answers * self.sensitivity
        return float(1 - (1 - CONFIDENCE) ** (1 / seen))


class ShownDifference(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that differs from the idle one, with the text around the first difference."""

    prompt: int
    """From 1."""
    situation: str
    size: str
    """See AnswerDifference."""
    margin: float | None
    idle_text: str
    text: str
    broken: tuple[str, ...] = ()


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
    """Whether answers are right."""

    isolation: AnswerIsolation
    references: ReferenceComparison | None = None
    """None: no reference prompt was asked."""

    @property
    def is_alarming(self) -> bool:
        """An answer was wrong, or the load makes answers differ."""
        if self.isolation.leaks or self.isolation.faults:
            return True
        references = self.references
        return references is not None and (
            bool(references.faults) or _is_worse_under_load(references)
        )


# -- numbers ---------------------------------------------------------------------------------------


def measure_isolation(records: Iterable[Record]) -> AnswerIsolation:
    """Count the checks of all answers, of the warmup too."""
    counts = Counter[str]()
    faults = Counter[str]()
    ids = list[int]()
    for record in records:
        checks = record.answer
        if checks is None:
            continue
        faults.update(set(checks.faults))
        if checks.id_hash is not None:
            ids.append(checks.id_hash)
        if not checks.searched:
            continue
        counts["answers"] += 1
        counts["marked"] += checks.marker is not None
        counts["asked"] += checks.asked
        counts["asked_repeated"] += checks.asked and checks.repeated
        counts["repeated"] += checks.repeated
        counts["leaks"] += bool(checks.foreign)
    if duplicates := sum(find_duplicates(ids).values()):
        faults[DUPLICATE_ID] += duplicates
    return AnswerIsolation(
        answers=counts["answers"],
        marked=counts["marked"],
        asked=counts["asked"],
        asked_repeated=counts["asked_repeated"],
        repeated=counts["repeated"],
        leaks=counts["leaks"],
        faults=_order_faults(faults),
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
        faults=_order_faults(faults),
        rates=compute_mismatch_rates(compared, RequestEnds(cancelled), RequestEnds(retried)),
        differences=tuple(map(_show, different[:MAX_SHOWN])),
        more_differences=max(0, len(different) - MAX_SHOWN),
    )


def _order_faults(faults: Counter[str]) -> dict[str, int]:
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


# -- sentences -------------------------------------------------------------------------------------


def describe_isolation(isolation: AnswerIsolation) -> str:
    """One sentence, the result first."""
    answers = f"{isolation.answers:,} answers"
    if isolation.leaks:
        verb = "holds" if isolation.leaks == 1 else "hold"
        return (
            f"LEAK: {isolation.leaks:,} of {answers} {verb} the session marker of another session."
        )
    if not isolation.answers:
        return "No answer was searched for session markers of others."
    if not isolation.marked:
        return f"Isolation was not checked: no prompt of {answers} has a session marker."
    if isolation.sensitivity < LEAST_SENSITIVITY:
        return (
            f"No leak in {answers}, but leaks could hardly be seen: the model repeated its marker "
            f"in {isolation.asked_repeated} of {isolation.asked} requests that asked for it."
        )
    return (
        f"No leak in {answers}; a swapped answer would have shown in "
        f"{_percent(isolation.sensitivity)} of cases, so at most "
        f"{_percent(isolation.most_swapped)} were swapped (95%)."
    )


def describe_references(references: ReferenceComparison) -> str:
    """One sentence on the mismatches under load, beside idle."""
    load = find_rate(references.rates, LOADED_SERVER)
    idle = find_rate(references.rates, IDLE_SERVER)
    if load is None:
        return "No reference prompt was answered under load, so no answer could be compared."
    if not load.mismatches:
        return (
            f"{load.answers:,} reference answers under load equal the idle ones"
            f"{_count_near_ties(load)}, so at most {_percent(load.high)} differ (95%)."
        )
    verb = "differs" if load.mismatches == 1 else "differ"
    beside = ""
    if idle is not None:
        chance = "" if load.p is None else f" (p = {format_brief(load.p, digits=2)})"
        beside = f"; of repeated idle answers {idle.mismatches} of {idle.answers} did{chance}"
    maybe = "" if load.wide else " The server gives no margins, so rounding may be the reason."
    return (
        f"{load.mismatches} of {load.answers:,} reference answers under load {verb} from the idle "
        f"ones{beside}.{maybe}"
    )


def describe_faults(faults: Mapping[str, int], whose: str) -> str:
    """One sentence. Empty: there are none."""
    listed = ", ".join(f"{name} in {count:,}" for name, count in faults.items())
    return f"{whose} with faults: {listed}." if listed else ""


def format_answers_line(found: AnswersUnderLoad) -> str:
    """The result of all checks for the console and the begin of the report."""
    isolation, references = found.isolation, found.references
    sentences = [describe_isolation(isolation), describe_faults(isolation.faults, "Answers")]
    if references is not None:
        sentences.append(describe_references(references))
        sentences.append(describe_faults(references.faults, "Reference answers"))
    return " ".join(filter(None, sentences))


def _is_worse_under_load(references: ReferenceComparison) -> bool:
    """More answers differ than chance allows, or some by a wide margin, which none did idle."""
    load = find_rate(references.rates, LOADED_SERVER)
    idle = find_rate(references.rates, IDLE_SERVER)
    if load is None or idle is None:
        return False
    new_ones = load.wide > 0 and not idle.wide
    return new_ones or (load.p is not None and load.p < SIGNIFICANT)


def _count_near_ties(rate: MismatchRate) -> str:
    if not rate.near_ties:
        return ""
    return f", but for {format_count(rate.near_ties, 'near tie')}"


def _percent(share: float | None) -> str:
    return "-" if share is None else format_brief(100 * share, "%", 2)


# -- blocks ----------------------------------------------------------------------------------------


def make_answers_blocks(found: AnswersUnderLoad) -> Iterator[Block]:
    yield Heading("Answers under load")
    isolation, references = found.isolation, found.references
    yield TextBlock(describe_isolation(isolation), loud=bool(isolation.leaks))
    yield TextBlock(
        f"Own marker repeated: in {isolation.asked_repeated:,} of {isolation.asked:,} answers that "
        f"were asked for it, and in {isolation.repeated:,} of {isolation.marked:,} in all."
    )
    yield from _make_fault_blocks(isolation, references)
    if references is not None:
        yield from _make_reference_blocks(references)


def _make_fault_blocks(
    isolation: AnswerIsolation, references: ReferenceComparison | None
) -> Iterator[Block]:
    """The faults of single answers: of the load, and of reference prompts."""
    of_references = {} if references is None else references.faults
    names = isolation.faults | of_references
    if not names:
        yield TextBlock("No answer has another fault.")
        return
    yield TableBlock(
        ("Fault", "Answers", "Reference answers", "Meaning"),
        tuple(
            (
                name,
                f"{isolation.faults.get(name, 0):,}",
                f"{of_references.get(name, 0):,}",
                FAULT_SENTENCES.get(name, "-"),
            )
            for name in names
        ),
        numbers=False,
    )


def _make_reference_blocks(references: ReferenceComparison) -> Iterator[Block]:
    yield TextBlock(describe_references(references), loud=_is_worse_under_load(references))
    idle = find_rate(references.rates, IDLE_SERVER)
    if idle is not None and idle.mismatches:
        yield TextBlock(
            f"The idle server differs from itself: in {idle.mismatches} of {idle.answers} repeated "
            "answers. Answers under load are judged against that."
        )
    failed = f", {references.failed} of them failed" if references.failed else ""
    yield TextBlock(
        f"{format_count(references.sent, 'reference request')} to "
        f"{format_count(references.prompts, 'prompt')} were sent{failed}. They add at most one "
        "user to the load, and count in no metric."
    )
    if references.without:
        yield TextBlock(
            f"The server refuses {', '.join(references.without)}: requests left it out."
        )
    if references.rates:
        yield TableBlock(
            (
                "Situation", "Answers", "Wide margin", "Unknown margin", "Near ties",
                "Mismatch rate", "95% interval", "p against idle",
            ),
            tuple(map(_make_rate_row, references.rates)),
        )  # fmt: skip
        yield TextBlock(
            "A near tie is rounding, and no mismatch. p is the chance of so many mismatches at the "
            "idle rate."
        )
    if references.differences:
        yield TableBlock(
            ("Prompt", "Situation", "Difference", "Idle answer", "This answer"),
            tuple(map(_make_difference_row, references.differences)),
            numbers=False,
        )
        more = (
            f" {references.more_differences} more are in reference_answers.jsonl."
            if references.more_differences
            else ""
        )
        yield TextBlock(f"{FIRST_DIFFERENCE} marks the first difference.{more}")


def _make_rate_row(rate: MismatchRate) -> tuple[str, ...]:
    return (
        rate.situation,
        f"{rate.answers:,}",
        str(rate.wide),
        str(rate.unknown),
        str(rate.near_ties),
        _percent(rate.rate),
        f"{_percent(rate.low)} to {_percent(rate.high)}",
        "-" if rate.p is None else format_brief(rate.p, digits=2),
    )


def _make_difference_row(shown: ShownDifference) -> tuple[str, ...]:
    margin = "" if shown.margin is None else f", {format_number(shown.margin)} nats"
    kind = ", ".join((f"{shown.size}{margin}", *shown.broken))
    return f"{shown.prompt}", shown.situation, kind, shown.idle_text, shown.text


# -- section ---------------------------------------------------------------------------------------


def _find(material: ReportMaterial) -> AnswersUnderLoad | None:
    """None: answers were not checked."""
    if not material.run.settings.check_answers:
        return None
    answers = select_answers(material.reference_answers, material.run)
    return AnswersUnderLoad(
        isolation=measure_isolation(material.records),
        references=compare_references(answers, material.records),
    )


ANSWERS_UNDER_LOAD: Final = ReportSection(
    name=ANSWERS,
    subject="the checks of answers",
    finding=AnswersUnderLoad,
    find=_find,
    make_blocks=make_answers_blocks,
    shows_arms=True,
)
