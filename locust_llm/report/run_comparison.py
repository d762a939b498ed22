"""Run comparison: runs side by side with the first of them, their base; as a document, and as data
for JSON."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from locust_llm.records.buffering import (
    describe_gathering,
    describe_metrics_left_out,
    is_gathered,
)
from locust_llm.records.outcomes import CUT, FAILURES, OK
from locust_llm.records.run_facts import SIMULATED
from locust_llm.records.server_metrics_history import read_history
from locust_llm.report.compare.condition_differences import (
    MAX_CACHED_DIFFERENCE,
    LoadedRun,
    describe_work,
    find_condition_differences,
    load_run,
)
from locust_llm.report.compare.forest_plot import BETTER, FROM_DUE, WORSE, Difference
from locust_llm.report.compare.metric_differences import FEW, SAME, MetricChange, measure_change
from locust_llm.report.compare.same_workload import find_work_differences
from locust_llm.report.document_blocks import Block, Heading, TableBlock, TextBlock
from locust_llm.report.open_loop_delivery import describe_overload
from locust_llm.report.outages import describe_outages, select_outages_between
from locust_llm.report.request_selection import ratio_of_sums
from locust_llm.report.sections.prefill_limit_comparison import select_limit_requests
from locust_llm.report.sections.prefix_cache import find_cached_share
from locust_llm.report.sections.sweep.sweep_findings import find_sweep_axis
from locust_llm.report.slo_evidence.observed_rule_values import Evaluation, compute_rule_value
from locust_llm.settings.sweep_option import AXES, PREFILL
from locust_llm.slo.best_prefill_limit import NO_LIMIT, Limit, format_limit
from locust_llm.slo.load_generator_health import INVALID
from locust_llm.slo.metric_definitions import BY_WORD, SHARE, TIME
from locust_llm.slo.rules import Condition, Rule, define_good_request
from locust_llm.text.format import (
    ComparedTexts,
    format_brief,
    format_count,
    format_signed,
    truncate_text,
)
from locust_llm.text.format import format_comparison as in_same_digits

from .render.text_report import WIDTH, render_markdown_blocks, render_plain_blocks

SCHEMA: Final = 1
NAME_WIDTH: Final = 16
"""The characters of a run's name above its column."""
FIGURES: Final = (
    *(("ttft", p) for p in ("p50", "p95", "p99")),
    *(("itl", p) for p in ("p50", "p95", "p99")),
    ("icl", "p99"), ("longest_stall", "p99"), ("request_latency", "p50"),
    ("request_latency", "p99"),
)  # fmt: skip
WAITS: Final = (
    ("ttft_from_due", "p50"),
    ("ttft_from_due", "p95"),
    ("ttft_from_due", "p99"),
    ("gate_wait", "p50"),
    ("gate_wait", "p99"),
)
"""The waits with a gate, or in an open loop."""
RATES: Final = {
    "output_tokens_per_s": " output tokens/s", "requests_per_s": " requests/s",
}  # fmt: skip
"""The rates that count a time without answers, and their units."""
STAGE_FIGURES: Final = (("ttft", "p95"), ("output_tokens_per_s", ""))
LIMIT_FIGURES: Final = (("ttft_from_due", "p95"), ("longest_stall", "p95"))
SHORT_TITLES: Final = ("base", "this run")
"""The titles of the columns of two runs."""
HEAD: Final = ("difference", "%", "95% interval", "")
NOTES: Final = (
    "Difference: this run minus the base. The 95% interval combines the intervals of both runs, "
    "which include the correlation between requests. Divided by the value of the base, it is the "
    "interval that an SLO rule against this base has. No significant difference: the interval "
    "contains 0. With two "
    "equal runs, about one metric of 20 is called better or worse at random. No interval covers "
    "changes between the runs, such as a restart of the server or other programs on the machine. "
    "Repeat both runs before you trust a small difference.",
)
OF_FAILURES: Final = (
    "Percentiles count each failure as +infinity, as SLO rules do; averages and rates are of "
    "successful requests."
)


class ComparisonLine(msgspec.Struct, frozen=True, kw_only=True):
    """One value of two runs, in ``unit``. None: it is absent, and ``note`` has the reason."""

    metric: str
    stat: str
    label: str
    unit: str
    base: float | None
    value: float | None
    difference: float | None
    difference_percent: float | None
    """The difference in percent of the base. None: the base's value is 0, or the value is a
    share."""
    low: float | None
    high: float | None
    """``low`` and ``high`` bound the 95 % interval of the difference. None: too few values, or a
    value without an interval."""
    base_open: bool = False
    value_open: bool = False
    """Cut requests leave the value open: a latency is a lower bound, a rate an upper bound."""
    word: str
    """better, worse, hardly better or hardly worse (by less than 1 %), no significant difference,
    too few to tell, or - for nothing to compare."""
    note: str = ""


class StagePair(msgspec.Struct, frozen=True, kw_only=True):
    """Two stages of one value, or the values of one limit in two comparisons of prefill limits."""

    value: float | None
    """The level of the sweep, or the prefill limit. None: no limit."""
    lines: tuple[ComparisonLine, ...]
    warnings: tuple[str, ...]


class RunPair(msgspec.Struct, frozen=True, kw_only=True):
    """A run compared with the base."""

    folder: str
    warnings: tuple[str, ...]
    """The problems of the run's folder, and each condition in which the two runs differ."""
    lines: tuple[ComparisonLine, ...]
    """The compared values. Empty for two equal sweeps, which are compared stage by stage."""
    other_work: str = ""
    """Why no differences are computed. Empty: they are computed."""
    axis: str = ""
    stages: tuple[StagePair, ...] = ()
    alone: tuple[str, ...] = ()
    """The stages that only one of the two runs has, in words."""
    between_runs: str = ""
    """How much runs of one server differ by chance, and which differences are no larger. Empty:
    unknown."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Several runs, each compared with the first one."""

    schema: int = SCHEMA
    base: str
    simulated: bool
    """Whether one of the runs is simulated."""
    warnings: tuple[str, ...]
    runs: tuple[RunPair, ...]
    simulated_folders: tuple[str, ...] = ()
    """The runs that are simulated."""

    def list_simulated(self) -> list[str]:
        """A line that says it, with the names where other runs are real. Empty: all are real."""
        if not self.simulated:
            return []
        names = self.simulated_folders
        if not names or len(names) > len(self.runs):
            return [SIMULATED]
        come = "comes" if len(names) == 1 else "come"
        others = format_count(len(self.runs) + 1 - len(names), "other run does", "other runs do")
        return [f"SIMULATED: {', '.join(names)} {come} from a simulator, and {others} not."]


def compare_folders(
    folders: Sequence[Path], on_run: Callable[[LoadedRun], None] = lambda run: None
) -> Comparison:
    """The first is the base. ``on_run`` gets each run, of which but the base is dropped then.
    Raises ValueError of one sentence for a folder that is not a run folder."""
    base = load_run(folders[0])
    on_run(base)
    pairs = []
    simulated = [str(folders[0])] * _simulated(base)
    for folder in folders[1:]:
        run = load_run(folder)
        on_run(run)
        simulated += [str(folder)] * _simulated(run)
        pairs.append(_pair(base, run))
    return Comparison(
        base=str(folders[0]),
        simulated=bool(simulated),
        warnings=_problems(base),
        runs=tuple(pairs),
        simulated_folders=tuple(simulated),
    )


def build_comparison_document(compared: Comparison) -> Iterator[Block]:
    """The blocks in reading order, not escaped yet."""
    yield Heading(f"Compared with {compared.base}")
    yield from (TextBlock(line, loud=True) for line in compared.list_simulated())
    yield from (TextBlock(f"WARNING: {warning}", loud=True) for warning in compared.warnings)
    for pair in compared.runs:
        yield Heading(f"{pair.folder} against {compared.base}")
        yield from make_pair_blocks(pair, make_column_titles(compared.base, pair.folder))
    yield from map(TextBlock, NOTES)
    if may_have_failures(compared):
        yield TextBlock(OF_FAILURES)


def may_have_failures(compared: Comparison) -> bool:
    """Whether a request failed in one of the runs. Stages of sweeps do not show it."""
    if any(pair.axis for pair in compared.runs):
        return True
    lines = chain.from_iterable(pair.lines for pair in compared.runs)
    rates = [line for line in lines if line.metric == "error_rate"]
    return any(line.base != 0 or line.value != 0 for line in rates)


def make_pair_blocks(pair: RunPair, names: tuple[str, str]) -> Iterator[Block]:
    """The warnings and values of one run, under these titles of the two columns."""
    if pair.other_work:
        yield TextBlock(
            f"Not compared, because the workload differs: {pair.other_work}.", loud=True
        )
    yield from (TextBlock(f"WARNING: {warning}", loud=True) for warning in pair.warnings)
    if pair.lines:
        yield TableBlock(
            ("Metric", *names, *HEAD),
            tuple((line.label, *format_line_cells(line)) for line in pair.lines),
        )
    yield from _notes(pair.lines)
    if pair.between_runs:
        yield TextBlock(pair.between_runs)
    if pair.axis:
        yield from _by_stage(pair, names)


def render_comparison_console(compared: Comparison, width: int = WIDTH) -> str:
    """The document as plain text, no wider than ``width`` where the numbers allow."""
    return render_plain_blocks(build_comparison_document(compared), width)


def render_comparison_markdown(compared: Comparison) -> str:
    """The document as GitHub's Markdown."""
    return render_markdown_blocks(build_comparison_document(compared))


def _pair(base: LoadedRun, run: LoadedRun) -> RunPair:
    axis = _same_sweep(base, run)
    warnings = (*_problems(run), *_differences(base, run))
    if axis:
        stages, alone = _limits(base, run) if axis == PREFILL else _stages(base, run)
        return RunPair(
            folder=str(run.folder),
            warnings=warnings,
            lines=(),
            axis=axis,
            stages=stages,
            alone=alone,
        )
    if swept := [side for side in (base, run) if has_different_loads(side)]:
        names = " and ".join(str(side.folder) for side in swept)
        return RunPair(
            folder=str(run.folder),
            warnings=warnings,
            lines=(),
            other_work=(
                f"{names} swept {find_sweep_axis(swept[-1].seen.run)}, so it has no metrics of all "
                "stages together"
            ),
        )
    lines = tuple(_lines(base, run))
    other = _turned_limit(base, run) or _other_work(base, run) or _cache_warmed(base, run)
    return RunPair(
        folder=str(run.folder),
        warnings=warnings,
        lines=_without_differences(lines) if other else lines,
        other_work=other,
    )


def has_different_loads(side: LoadedRun) -> bool:
    """Its stages have different loads: a percentile of all of them means nothing."""
    return bool(side.seen.run.stages) and find_sweep_axis(side.seen.run) in AXES


def list_differences(pair: RunPair) -> list[Difference]:
    """The values that have a difference in percent, of a sweep those of each stage."""
    rows = [("", line) for line in pair.lines]
    for place in range(len(pair.stages[0].lines) if pair.stages else 0):
        for stage in pair.stages:
            rows.append((f"{pair.axis} {format_stage_value(stage.value)}", stage.lines[place]))
    differences = list[Difference]()
    for where, line in rows:
        is_bound = line.base_open or line.value_open
        percent = _bound_percent(line) if is_bound else line.difference_percent
        if percent is None or line.base is None or not line.base > 0:
            continue
        low, high = (
            None if end is None or is_bound else 100 * end / line.base
            for end in (line.low, line.high)
        )
        differences.append(
            Difference(
                line.metric,
                line.stat,
                ", ".join(filter(None, (line.label.removesuffix(" (ms)"), where))),
                percent,
                low,
                high,
                line.word,
                where,
                is_bound,
            )
        )
    return differences


def _bound_percent(line: ComparisonLine) -> float | None:
    """The difference is at least so large, where one of the two values is a bound. None: it may be
    none."""
    both_open = line.base_open and line.value_open
    if both_open or line.word not in (BETTER, WORSE) or not line.base or line.value is None:
        return None
    percent = 100 * (line.value / line.base - 1)
    falls = BY_WORD[line.metric].less_is_better == (line.word == BETTER)
    return percent if math.isfinite(percent) and (percent < 0) == falls else None


def has_waits(pair: RunPair) -> bool:
    """The requests of the runs waited before their send."""
    lines = chain(pair.lines, *(stage.lines for stage in pair.stages))
    return any(line.metric == FROM_DUE for line in lines)


def _turned_limit(base: LoadedRun, run: LoadedRun) -> str:
    """The sentence that one of the two runs changed its prefill limit. Empty: both or none did."""
    turned = [str(side.folder) for side in (base, run) if side.seen.run.limit_blocks]
    return (
        f"{turned[0]} compares prefill limits, so its metrics mix them" if len(turned) == 1 else ""
    )


def _other_work(base: LoadedRun, run: LoadedRun) -> str:
    """The difference of the work, in words. Empty: both had the same work, or it is not known."""
    return ", ".join(
        map(str, find_work_differences(describe_work(base.seen), describe_work(run.seen)))
    )


def _cache_warmed(base: LoadedRun, run: LoadedRun) -> str:
    """The sentence that the prefix cache knew the words of one of the two runs. Empty: it did not,
    or it is not known."""
    if not _same_words(base, run):
        return ""
    before = compute_cached_share(base)
    after = compute_cached_share(run)
    if before is None or after is None or round(abs(after - before), 9) <= MAX_CACHED_DIFFERENCE:
        return ""
    return (
        f"{before:.0%} of the input tokens were cached in the base and {after:.0%} here, because "
        "both runs sent the same words"
    )


def _same_words(base: LoadedRun, run: LoadedRun) -> bool:
    """Whether both drew all prompts from one seed, or took them from one file."""
    if not (base.known and run.known) or base.seen.run.words_seed or run.seen.run.words_seed:
        return False
    a, b = base.seen.run.settings, run.seen.run.settings
    return _same_seed(base, run) or (a.input_file is not None and a.input_file == b.input_file)


def _seed_of(side: LoadedRun) -> str:
    return f"--random-seed {side.seen.run.settings.random_seed} without --fresh-words"


def _cached(base: LoadedRun, run: LoadedRun) -> Iterator[str]:
    """The prefix cache's share of the words that both runs sent. Nothing: it had none of them."""
    same = f"both runs sent the same words ({_seed_of(run)})"
    before = compute_cached_share(base)
    after = compute_cached_share(run)
    if before is None or after is None:
        yield f"{same}, so the prefix cache may have been warm."
    elif round(before, 2) or round(after, 2):
        yield f"{same}: {before:.0%} of the input tokens were cached in the base and {after:.0%} here."


def _same_seed(base: LoadedRun, run: LoadedRun) -> bool:
    a, b = base.seen.run.settings.random_seed, run.seen.run.settings.random_seed
    return a is not None and a == b


def compute_cached_share(side: LoadedRun) -> float | None:
    """The share of the input tokens from the prefix cache, by answers or the server's metrics.
    None: neither has it."""
    ok = side.seen.main.outcome(OK)
    share = ratio_of_sums(ok["cached_tokens"], ok["input_tokens"])
    if share is not None:
        return share
    with contextlib.suppress(OSError):
        return find_cached_share(read_history(side.folder), side.seen.run)
    return None


def _without_differences(lines: Sequence[ComparisonLine]) -> tuple[ComparisonLine, ...]:
    """The values side by side, without differences."""
    nothing = {
        "difference": None,
        "difference_percent": None,
        "low": None,
        "high": None,
        "word": "-",
        "note": "",
    }
    return tuple(replace(line, **nothing) for line in lines)


def _lines(base: LoadedRun, run: LoadedRun) -> Iterator[ComparisonLine]:
    """The main values of such runs."""
    settings = [side.seen.run.settings for side in (base, run)]
    gated = any(side.seen.run.limits for side in (base, run))
    open_loop = any(side.open_loop for side in settings)
    waits = [(word, p) for word, p in WAITS if gated or (open_loop and word != "gate_wait")]
    rules = [_rule(word, stat) for word, stat in (*FIGURES, *waits)]
    rules += [_rule(word) for word in ("requests_per_s", "output_tokens_per_s", "error_rate")]
    yield from (_compare_value(rule, base.seen, run.seen) for rule in rules)
    good, other = (define_good_request(side.rules)[0] for side in settings)
    if not good or not other:
        return
    note = ""
    if set(good) != set(other):
        limits = " and ".join(map(str, good))
        note = f"a good request is the base's in both runs, {limits}"
    for word in ("attainment", "goodput"):
        line = _compare_value(_rule(word, given=good), base.seen, run.seen)
        yield replace(line, note="; ".join(filter(None, (note, line.note))))


def _rule(word: str, stat: str = "", given: tuple[Condition, ...] = ()) -> Rule:
    """A rule for this value. Its limit is not used."""
    unit = "ms" if BY_WORD[word].units is TIME else next(iter(BY_WORD[word].units))
    return Rule(word, "<=", 0.0, unit, stat, given=given)


def _compare_value(rule: Rule, base: Evaluation, here: Evaluation) -> ComparisonLine:
    """A value of two runs, with its difference where both values describe the model, and neither
    falls on a failure that may be chance."""
    line = _line(rule, measure_change(rule, base, here))
    if gathered := _find_gathered(rule, base, here):
        (without,) = _without_differences([line])
        return replace(without, note=gathered)
    values = {"in the base": line.base, "here": line.value}
    failed = [where for where, value in values.items() if value is not None and math.isinf(value)]
    if failed and line.word == SAME:
        note = f"{' and '.join(failed)} it falls on a failed request, so there is no interval"
        if len(failed) == len(values):  # two failures have no difference
            (without,) = _without_differences([line])
            return replace(without, note=note)
        return replace(line, low=None, high=None, word=FEW, note=note)
    return line


def _find_gathered(rule: Rule, base: Evaluation, here: Evaluation) -> str:
    """Why a value does not describe the model. Empty: it does, in both runs."""
    whys = []
    for where, seen in (("in the base", base), ("here", here)):
        if is_gathered(rule, seen.run.notes):
            whys.append(f"{where}, {describe_gathering(seen.run.notes)}")
    return "; ".join(whys)


def _line(rule: Rule, metric_change: MetricChange) -> ComparisonLine:
    measure = BY_WORD[rule.metric]

    def shown(value: float | None) -> float | None:
        return None if value is None else value * rule.factor

    low, high = metric_change.ends or (None, None)
    relative = (
        metric_change.ratio is not None
        and math.isfinite(metric_change.ratio)
        and measure.units is not SHARE
    )
    return ComparisonLine(
        metric=rule.metric,
        stat=rule.stat,
        label=_label(rule),
        unit=rule.unit,
        base=shown(metric_change.base.value),
        value=shown(metric_change.here.value),
        difference=shown(metric_change.difference),
        difference_percent=(metric_change.ratio - 1) * 100
        if relative and metric_change.ratio is not None
        else None,
        low=shown(low),
        high=shown(high),
        base_open=metric_change.base.worst is not None,
        value_open=metric_change.here.worst is not None,
        word=metric_change.word(rule),
        note=metric_change.note,
    )


def _label(rule: Rule) -> str:
    measure = BY_WORD[rule.metric]
    if measure.metric is None:
        return measure.short or measure.word
    return f"{measure.metric.short or measure.metric.label} {rule.stat} (ms)"


# -- problems and differences ----------------------------------------------------------------------


def _problems(side: LoadedRun) -> tuple[str, ...]:
    failed, count = side.seen.main.outcome(*FAILURES).size, side.seen.main.size
    open_ = side.seen.main.outcome(CUT).size
    level = side.seen.verdict.level if side.seen.verdict is not None else ""
    silence = _describe_silence(side)
    gathered = describe_metrics_left_out(side.seen.run.notes)
    distorted = "the load generator distorted its metrics, so a difference may be caused by it"
    return (
        *([f"{side.folder} is INVALID: {distorted}."] if level == INVALID else []),
        *(f"{side.folder}: {note}." for note in side.notes),
        *([f"{side.folder}: {gathered}."] if gathered else []),
        *([] if count else [f"{side.folder}: no requests."]),
        *([f"{side.folder}: {failed} of {count} requests failed."] if failed else []),
        *(
            [
                f"{side.folder}: {open_} of {count} requests {'was' if open_ == 1 else 'were'} "
                f"unfinished and {'counts with its' if open_ == 1 else 'count with their'} age."
            ]
            if open_
            else []
        ),
        *(
            [f"{side.folder}: overloaded, {overload}."]
            if (overload := describe_overload(side.seen.delivery))
            else []
        ),
        *([f"{side.folder}: {silence}."] if silence else []),
    )


def _name_silent_stages(seen: Evaluation) -> str:
    """``, at concurrency 1 and 2``. Empty: the run has no stages, or none has an outage."""
    run = seen.run
    values = [
        f"{stage.value:g}"
        for stage in run.stages
        if select_outages_between(seen.outages, run, stage.began_at, stage.ended_at)
    ]
    if not values or find_sweep_axis(run) not in AXES:
        return ""
    return f", at {find_sweep_axis(run)} {' and '.join(dict.fromkeys(values))}"


def _describe_silence(side: LoadedRun) -> str:
    """``no token came from 20.0 to 26.0 s. Without these 6 s its rates are 36.4 output tokens/s and
    1.21 requests/s``. Empty: it answered all the time."""
    seen = side.seen
    if not seen.outages:
        return ""
    text = f"{describe_outages(seen.outages)}{_name_silent_stages(seen)}"
    silent_s = sum(outage.seconds for outage in seen.outages)
    left_s = seen.time.seconds - silent_s
    if has_different_loads(side) or seen.run.limit_blocks or not silent_s or left_s <= 0:
        return text
    rates = list[str]()
    for word, unit in RATES.items():
        per_s = compute_rule_value(_rule(word), seen).value
        if per_s:
            rates.append(format_brief(per_s * seen.time.seconds / left_s, unit, 3))
    without = f"Without these {format_brief(silent_s, ' s', 3)} its rates are {' and '.join(rates)}"
    return f"{text}. {without}" if rates else text


def _differences(base: LoadedRun, run: LoadedRun) -> Iterator[str]:
    unknown = [str(side.folder) for side in (base, run) if not side.known]
    if unknown:
        yield (
            f"the conditions of {' and '.join(unknown)} are unknown, so these runs may not be "
            f"comparable."
        )
        return
    if _same_words(base, run) and _same_seed(base, run):
        yield from _cached(base, run)
    for condition in find_condition_differences(base.seen, run.seen):
        if condition.base == condition.here:
            yield f"{condition.what}: {condition.here} in both."
        else:
            yield f"different {condition.what}: {condition.base} in the base; {condition.here} here."
    if base.seen.run.stages and run.seen.run.stages and not _same_sweep(base, run):
        axes = sorted({find_sweep_axis(base.seen.run), find_sweep_axis(run.seen.run)} & set(AXES))
        if axes:
            yield f"stages are not compared: the sweeps have different axes ({' and '.join(axes)})."


def _simulated(side: LoadedRun) -> bool:
    return side.seen.run.simulated or bool(side.seen.main["simulated"].any())


# -- stage by stage --------------------------------------------------------------------------------


def _same_sweep(base: LoadedRun, run: LoadedRun) -> str:
    """The axis of two equal sweeps. Empty: they are not equal."""
    if base.seen.run.limit_blocks and run.seen.run.limit_blocks:
        return PREFILL
    axes = [find_sweep_axis(side.seen.run) if side.seen.run.stages else "" for side in (base, run)]
    return axes[0] if axes[0] == axes[1] and axes[0] in AXES else ""


def _stages(base: LoadedRun, run: LoadedRun) -> tuple[tuple[StagePair, ...], tuple[str, ...]]:
    """(stages that both have, a sentence for each that only one has)."""
    of_base = _number_stages(base)
    of_run = _number_stages(run)
    alone = [f"{value:g} only in {base.folder}" for value in sorted(of_base.keys() - of_run.keys())]
    alone += [f"{value:g} only in {run.folder}" for value in sorted(of_run.keys() - of_base.keys())]
    pairs = []
    for value in sorted(of_base.keys() & of_run.keys()):
        try:
            before = load_run(base.folder / "stages" / str(of_base[value]))
            after = load_run(run.folder / "stages" / str(of_run[value]))
        except (OSError, ValueError) as error:
            alone.append(f"{value:g}: {error}")
            continue
        rules = [_rule(word, stat) for word, stat in STAGE_FIGURES]
        lines = tuple(_compare_value(rule, before.seen, after.seen) for rule in rules)
        if _other_work(before, after) or _cache_warmed(before, after):
            lines = _without_differences(lines)
        warnings = (*_problems(before), *_problems(after), *_differences(before, after))
        pairs.append(StagePair(value=value, lines=lines, warnings=warnings))
    return tuple(pairs), tuple(alone)


def _limits(base: LoadedRun, run: LoadedRun) -> tuple[tuple[StagePair, ...], tuple[str, ...]]:
    """(limits that both compare, a sentence for each that only one does)."""
    of_base = _list_limits(base)
    of_run = _list_limits(run)
    alone = [f"{format_limit(x)} only in {base.folder}" for x in of_base if x not in of_run]
    alone += [f"{format_limit(x)} only in {run.folder}" for x in of_run if x not in of_base]
    other_work = _other_work(base, run) or _cache_warmed(base, run)
    pairs = []
    for limit in of_base:
        before = select_limit_requests(base.seen, limit)
        after = select_limit_requests(run.seen, limit)
        if before is None or after is None:
            continue
        rules = [_rule(word, stat) for word, stat in LIMIT_FIGURES]
        lines = tuple(_compare_value(rule, before, after) for rule in rules)
        lines = _without_differences(lines) if other_work else lines
        pairs.append(StagePair(value=limit, lines=lines, warnings=()))
    return tuple(pairs), tuple(alone)


def _list_limits(run: LoadedRun) -> tuple[Limit, ...]:
    """The limits: no limit first, then the others in rising order."""
    limits = {block.limit for block in run.seen.run.limit_blocks if block.round}
    return tuple(sorted(limits, key=lambda limit: -1 if limit is None else limit))


def _number_stages(run: LoadedRun) -> dict[float, int]:
    return {stage.value: stage.number for stage in run.seen.run.stages}


def _by_stage(pair: RunPair, names: tuple[str, str]) -> Iterator[Block]:
    each = "limit by limit" if pair.axis == PREFILL else "stage by stage"
    for i in range(len(pair.stages[0].lines) if pair.stages else 0):
        lines = [(stage.value, stage.lines[i]) for stage in pair.stages]
        yield TextBlock(f"{lines[0][1].label}, {each}:")
        yield TableBlock(
            (pair.axis, *names, *HEAD),
            tuple((format_stage_value(value), *format_line_cells(line)) for value, line in lines),
        )
    yield from (TextBlock(f"Not compared: {alone}.") for alone in pair.alone)
    known = set(pair.warnings)
    for stage in pair.stages:
        for warning in stage.warnings:
            if warning not in known:  # no repetition of what holds for the whole sweeps
                yield TextBlock(
                    f"WARNING: {pair.axis} {format_stage_value(stage.value)}: {warning}", loud=True
                )
        yield from _notes(stage.lines, f"{pair.axis} {format_stage_value(stage.value)}: ")


def format_stage_value(value: float | None) -> str:
    """``8``, ``0.5``, or ``none`` of no prefill limit."""
    return NO_LIMIT if value is None else f"{value:g}"


# -- cells -----------------------------------------------------------------------------------------


def get_bound_mark(line: ComparisonLine) -> str:
    """The mark before a value that cut requests leave open."""
    if BY_WORD[line.metric].units is TIME:
        return "\N{GREATER-THAN OR EQUAL TO} "
    return "\N{LESS-THAN OR EQUAL TO} "


def format_line_cells(line: ComparisonLine) -> tuple[str, ...]:
    """The cells under the names of the two runs and ``HEAD``."""
    bound = get_bound_mark(line)
    shown = in_same_digits(line.base, line.value, line.low, line.high)
    figures = f"{bound * line.base_open}{shown.base}", f"{bound * line.value_open}{shown.value}"
    has_ends = line.low is not None and line.high is not None and shown.low != "-"
    reach = f"{shown.low} to {shown.high}" if has_ends else "-"
    # how far apart two bounds are tells nothing
    if line.base_open or line.value_open or line.difference is None:
        return *figures, "-", "-", reach, line.word
    return *figures, shown.difference, _percent(line, shown), reach, line.word


def _percent(line: ComparisonLine, shown: ComparedTexts) -> str:
    percent = line.difference_percent
    if percent is None or shown.base == "0":  # a multiple of what is shown as nothing
        return "-"
    return format_signed(percent, 1, "%") if percent < 1000 else f"x{percent / 100 + 1:,.0f}"


def _notes(lines: Sequence[ComparisonLine], before: str = "") -> Iterator[TextBlock]:
    """The notes, each once, with the labels of its values."""
    for note in dict.fromkeys(line.note for line in lines if line.note):
        yield TextBlock(
            f"{before}{', '.join(line.label for line in lines if line.note == note)}: {note}."
        )


def make_column_titles(base: str, run: str) -> tuple[str, str]:
    """The titles of the two columns."""
    first, second = (truncate_text(name, NAME_WIDTH) for name in name_folders((base, run)))
    return (first, second) if first != second and first and second else SHORT_TITLES


def name_folders(folders: Sequence[str]) -> list[str]:
    """The last parts of the paths, as many as tell these folders apart: ``b`` and ``c`` of ``a/b``
    and ``a/c``, ``a/r`` and ``b/r`` of the same."""
    parts = [Path(folder).parts for folder in folders]
    most = max(map(len, parts))
    for kept in range(1, most + 1):
        names = [str(Path(*each[-kept:])) for each in parts]
        if len(set(names)) == len(set(folders)):
            return names
    return list(folders)
