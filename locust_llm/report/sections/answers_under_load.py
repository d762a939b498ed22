"""Answers under load: what the checks of answers found, in sentences and tables. The numbers are in
report/answer_results.py."""

from collections.abc import Iterator, Mapping
from typing import Final

from locust_llm.answers.fault_names import FAULT_SENTENCES
from locust_llm.answers.mismatch_rates import (
    IDLE_SERVER,
    LOADED_SERVER,
    MismatchRate,
    find_rate,
)
from locust_llm.records.answer_fault import ANSWER_FAULTS_FILE, REPRODUCE_COMMAND
from locust_llm.report.answer_results import (
    FIRST_DIFFERENCE,
    LEAST_SENSITIVITY,
    AnswerIsolation,
    AnswersUnderLoad,
    MarkedPrompts,
    ReferenceComparison,
    ShownDifference,
    describe_foreign_markers,
    is_worse_under_load,
)
from locust_llm.report.document_blocks import Block, Heading, TableBlock, TextBlock
from locust_llm.text.format import clean_line, format_brief, format_count, format_number

from .section import ReportSection

ANSWERS: Final = "answers"
"""The name of the finding in run.json."""


# -- sentences -------------------------------------------------------------------------------------


def describe_leaks(isolation: AnswerIsolation) -> str:
    """One sentence, the result first."""
    answers = f"{isolation.answers:,} {'answer' if isolation.answers == 1 else 'answers'}"
    if isolation.all_leaks:
        return f"LEAK: {describe_foreign_markers(isolation)}."
    if not isolation.answers:
        return "No answer was searched for session markers of others."
    if not isolation.marked:
        return f"Isolation was not checked: no prompt of {answers} has a session marker."
    if isolation.sensitivity < LEAST_SENSITIVITY:
        return (
            f"No leak in {answers}, but leaks could hardly be seen: {isolation.repeated:,} of them "
            "repeat their own session marker."
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
        equal = "answer under load equals" if load.answers == 1 else "answers under load equal"
        return (
            f"{load.answers:,} reference {equal} the idle ones"
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
    sentences = [describe_leaks(isolation), describe_faults(isolation.faults, "Answers")]
    if isolation.has_evidence:  # only these answers can be replayed, reference answers cannot
        sentences.append(f"Reproduce a fault: {REPRODUCE_COMMAND}.")
    if references is not None:
        sentences.append(describe_references(references))
        sentences.append(describe_faults(references.faults, "Reference answers"))
    return " ".join(filter(None, sentences))


def describe_marked_prompts(marked: MarkedPrompts) -> str:
    """What markers change in the length of prompts and in cache hits."""
    length = ""
    if marked.marker_tokens is not None:
        length = f" of {format_brief(marked.marker_tokens, digits=2)} tokens"
    if marked.replayed:
        change = f"A marker{length} lengthens a replayed prompt. Only prompts of one session"
        change += " share the text after their marker"
    else:
        change = f"A marker{length} is part of the requested length, and follows the shared text"
    if marked.cached_share is None:
        return f"{change}."
    cached = _percent(marked.cached_share)
    return f"{change}. The server had {cached} of the tokens of these prompts in its cache."


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
    yield TextBlock(describe_leaks(isolation), loud=bool(isolation.all_leaks))
    yield TextBlock(
        f"Own marker repeated: in {isolation.asked_repeated:,} of {isolation.asked:,} answers to "
        f"requests that asked for it, and in {isolation.repeated:,} of {isolation.marked:,} in all."
    )
    if found.marked is not None:
        yield TextBlock(describe_marked_prompts(found.marked))
    yield from _make_fault_blocks(isolation, references)
    if isolation.has_evidence:
        yield TextBlock(
            f"{ANSWER_FAULTS_FILE} has wrong answers with their requests and the requests that "
            f"overlapped with them. Reproduce them: {REPRODUCE_COMMAND}."
        )
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
    yield TextBlock(describe_references(references), loud=is_worse_under_load(references))
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
            f"The server refuses {', '.join(references.without)} with some prompts: requests left "
            "it out there."
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
    question = f": {clean_line(shown.question)}" if shown.question else ""
    return f"{shown.prompt}{question}", shown.situation, kind, shown.idle_text, shown.text


# -- section ---------------------------------------------------------------------------------------


ANSWERS_UNDER_LOAD: Final = ReportSection(
    name=ANSWERS,
    subject="the checks of answers",
    finding=AnswersUnderLoad,
    find=lambda material: material.answers,
    make_blocks=make_answers_blocks,
    shows_arms=True,
)
