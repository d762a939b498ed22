"""Condition differences: the conditions in which two runs differ, and which of these change the
figures."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Final, NamedTuple

import msgspec
import numpy as np

from locust_llm.files.json_file import decode_json_file
from locust_llm.records.outcomes import OK
from locust_llm.records.profile_export_jsonl import RecordFile
from locust_llm.records.record_parts import PARTS
from locust_llm.records.run_facts import (
    RECORDS,
    RUN,
    RateChange,
    Run,
    Stage,
    find_gone_records,
    read_run,
)
from locust_llm.records.server_metrics_history import read_history
from locust_llm.report.compare.same_workload import (
    ASKED_FOR,
    MAX_LENGTH_DIFFERENCE,
    LengthStatistics,
    RunWork,
    choose_max_errors,
    is_judged_by_requested,
    lengths_differ,
)
from locust_llm.report.load_records import RequestColumns, read_columns
from locust_llm.report.measurement_window import (
    RateWindow,
    find_loaded_span,
    find_measured_span,
    find_pauses,
    find_settled_window,
    measure_steady_state,
    select_ended_in,
)
from locust_llm.report.open_loop_delivery import describe_arrivals, measure_delivery
from locust_llm.report.outages import (
    NOTHING,
    Outage,
    find_run_outages,
    list_metric_readings,
    merge_outages,
)
from locust_llm.report.request_selection import RequestSelection, ratio_of_sums
from locust_llm.report.slo_evidence.observed_rule_values import Evaluation
from locust_llm.report.users_and_limit_over_time import find_limit_in_force, find_users_in_force
from locust_llm.settings.run_options import Settings
from locust_llm.settings.workload_options import WORKLOAD_OPTIONS, format_option_value
from locust_llm.slo.load_generator_health import ClientVerdict
from locust_llm.text.format import format_count, truncate_text

LENGTHS: Final = {
    f"input tokens{ASKED_FOR}": "asked_input_tokens", "input tokens": "input_tokens",
    f"output tokens{ASKED_FOR}": "asked_output_tokens", "output tokens": "output_tokens",
}  # fmt: skip
"""The columns of lengths."""
MAX_ANSWERS_DIFFERENCE: Final = 0.1
"""Share of the length of answers beyond which their latencies say nothing about each other, though
the same was asked."""
LENGTH_SETTINGS: Final = (
    "synthetic_input_tokens_mean", "synthetic_input_tokens_stddev", "output_tokens_mean",
    "output_tokens_stddev", "batch_size_text", "seq_dist", "shared_system_prompt_length",
    "user_context_prompt_length", "num_prefix_prompts", "prefix_prompt_length", "input_file",
    "custom_dataset_type", "dataset_columns", "dataset_sampling_strategy", "session_turns_mean",
    "session_turns_stddev", "locustfile",
)  # fmt: skip
"""The settings by which a run draws its lengths."""
MAX_CACHED_DIFFERENCE: Final = 0.02
MAX_IN_FORCE_DIFFERENCE: Final = 0.1
"""Share, of the mean number of users and of the mean limit: runs that a load shape or a person
steered."""
DECISIVE: Final = {
    "model": True, "kind of server": True, "streaming": True, "load": True, "prefill limit": True,
    "prompts": True,
    "proxy": True, "server": False, "endpoint": False, "locustfile": False, "warmup": False,
    "cancelled on purpose": False, "retries": False,
    "processes": False, "machine": False,
}  # fmt: skip
"""By condition: whether a difference changes the figures."""
DESCRIBED: Final = frozenset((
    "users", "streaming", "endpoint_type", "model_mix", "check_answers", "max_retries",
    "synthetic_input_tokens_mean", "synthetic_input_tokens_stddev", "output_tokens_mean",
    "output_tokens_stddev", "seq_dist", "extra_inputs", "shared_system_prompt_length",
    "user_context_prompt_length", "num_prefix_prompts", "prefix_prompt_length", "input_file",
    "session_turns_mean", "responses_state", "prefill_concurrency",
    "prefill_concurrency_ramp_duration", "request_rate", "arrival_pattern", "arrival_smoothness",
    "request_rate_ramp_duration", "request_rate_series", "user_centric_rate", "fixed_schedule",
    "replay_speedup", "request_cancellation_rate", "request_cancellation_delay", "sweep",
))  # fmt: skip
"""The options of a workload that are in these conditions, or in lengths. The others are named by
their flags."""


MAX_VALUE: Final = 60
"""The characters of an option's value."""


class ConditionDifference(NamedTuple):
    """A condition in which two runs differ."""

    what: str
    base: str
    here: str
    decisive: bool
    """It changes the figures."""


def find_condition_differences(base: Evaluation, here: Evaluation) -> Iterator[ConditionDifference]:
    """The conditions in which two runs differ, those first that change the figures."""
    before = _conditions(base)
    after = _conditions(here)
    tools = [side.run.imported for side in (base, here)]
    if tools[0] != tools[1]:
        yield ConditionDifference(
            "load tester", tools[0] or "locust-llm", tools[1] or "locust-llm", decisive=False
        )
    for what, decisive in DECISIVE.items():
        known = not any(tools) or (what in ("model", "load") and before[what] and after[what])
        if before[what] != after[what] and known:
            yield ConditionDifference(what, before[what] or "none", after[what] or "none", decisive)
        if what == "prompts":
            yield from _lengths(base, here)
    if not any(tools):
        yield from _other_options(base.run.settings, here.run.settings)
    yield from _in_force(base.run, here.run)
    yield from _measured(base, here)
    for name in () if any(tools) else sorted({*base.run.versions, *here.run.versions}):
        was = base.run.versions.get(name, "none")
        is_ = here.run.versions.get(name, "none")
        if was != is_:
            yield ConditionDifference(f"version of {name}", was, is_, decisive=False)


def _describe_option(value: object) -> str:
    if value in (None, "", ()):
        return "none"
    return truncate_text(format_option_value(value), MAX_VALUE) or "on"


def _other_options(base: Settings, here: Settings) -> Iterator[ConditionDifference]:
    for field, flag in WORKLOAD_OPTIONS.items():
        values = [getattr(settings, field) for settings in (base, here)]
        if field in DESCRIBED or values[0] == values[1]:
            continue
        was, is_ = map(_describe_option, values)
        yield ConditionDifference(flag, was, is_, decisive=False)


def _conditions(seen: Evaluation) -> dict[str, str]:
    run, s = seen.run, seen.run.settings
    ramp_s = s.prefill_concurrency_ramp_duration
    simulated = run.simulated or bool(seen.main["simulated"].any())
    cancelled = s.request_cancellation_rate
    return {
        "model": run.model or s.model_mix or s.model or "",
        "kind of server": "simulator" if simulated else "real",
        "streaming": "yes" if s.streaming else "no",
        "load": "" if run.imported and s.users is None and not s.open_loop else _load(s, run.rates),
        "prefill limit": "" if s.prefill_concurrency is None
        else f"{s.prefill_concurrency}" + (f", ramp from 1 over {ramp_s:g} s" if ramp_s else ""),
        "prompts": _prompts(s),
        "server": " ".join(filter(None, (*s.addresses, run.server))),
        "proxy": run.proxy,
        "endpoint": s.endpoint,
        "locustfile": s.locustfile,
        "warmup": ", ".join(
            f"{value:g} {unit}"
            for value, unit in (
                (s.warmup_request_count, "requests"), (s.warmup_duration, "s"),
                (s.warmup_concurrency, "users"),
                (s.warmup_request_rate, "requests/s"),
            )
            if value
        ),
        "cancelled on purpose": f"{cancelled:g}% after {s.request_cancellation_delay:g} s" if cancelled else "",
        "retries": f"up to {s.max_retries}" if s.max_retries else "",
        "processes": str(s.processes),
        "machine": run.machine,
    }  # fmt: skip


def _load(s: Settings, rates: Sequence[RateChange]) -> str:
    sweep = f"sweep {s.sweep}, " if s.sweep else ""
    if not s.open_loop:
        users = "" if s.users is None else f", {format_count(s.users, 'user')}"
        return f"{sweep}closed loop{users}"
    arrivals = describe_arrivals(s, rates) or s.arrival_pattern  # stages have their own rates
    most = format_count(s.max_users if s.users is None else s.users, "user")
    return f"{sweep}open loop, {arrivals}, up to {most}"


def _prompts(s: Settings) -> str:
    return ", ".join(
        filter(
            None,
            (
                PurePath(s.input_file).name if s.input_file else s.seq_dist or "synthetic",
                f"a system prompt of {s.shared_system_prompt_length} tokens"
                if s.shared_system_prompt_length
                else "",
                f"a context of {s.user_context_prompt_length} a session"
                if s.user_context_prompt_length
                else "",
                f"{s.num_prefix_prompts} prefixes of {s.prefix_prompt_length} tokens"
                if s.num_prefix_prompts
                else "",
                f"{s.session_turns_mean:g} turns" if s.session_turns_mean != 1 else "",
                "state on the server" if s.responses_state == "server" else "",
                f"more fields {s.extra_inputs}" if s.extra_inputs else "",
                "session markers"
                if s.check_answers and (s.mark_replayed or not s.input_file)
                else "",
            ),
        )
    )


def _lengths(base: Evaluation, here: Evaluation) -> Iterator[ConditionDifference]:
    answered = [side.main.outcome(OK) for side in (base, here)]
    if not all(part.size for part in answered):  # they are measured of answers
        return
    before, after = map(_all_lengths, answered)
    most_errors = choose_max_errors(_drawn_by(base.run), _drawn_by(here.run))
    for what in LENGTHS:
        a, b = before[what], after[what]
        if a is not None and b is not None:
            if _only_followed(what, before, after):
                continue
            if lengths_differ(a, b, most_errors=most_errors):
                decisive = not is_judged_by_requested(what, before, after)
                if what == "output tokens" and lengths_differ(
                    a, b, MAX_ANSWERS_DIFFERENCE, most_errors
                ):
                    decisive = True
                yield ConditionDifference(what, _number(a.mean), _number(b.mean), decisive)
        elif a is not None or b is not None:
            was, is_ = ("unknown" if value is None else _number(value.mean) for value in (a, b))
            yield ConditionDifference(what, was, is_, decisive=False)


def _only_followed(what: str, *sides: Mapping[str, LengthStatistics | None]) -> bool:
    """Whether what came followed what was asked for alike in all runs: then it says nothing
    more."""
    shares = []
    for lengths in sides:
        asked = lengths.get(what + ASKED_FOR)
        came = lengths[what]
        if asked is None or came is None or not asked.mean:
            return False
        shares.append(came.mean / asked.mean)
    return max(shares) - min(shares) <= MAX_LENGTH_DIFFERENCE * min(shares)


def _drawn_by(run: Run) -> tuple[object, ...]:
    """The settings by which the lengths of a run were drawn; empty: another tool drew them."""
    return () if run.imported else tuple(getattr(run.settings, name) for name in LENGTH_SETTINGS)


def _all_lengths(part: RequestSelection) -> dict[str, LengthStatistics | None]:
    return {what: _length(part, column) for what, column in LENGTHS.items()}


def _length(part: RequestSelection, column: str) -> LengthStatistics | None:
    values = part[column][~np.isnan(part[column])]
    return (
        LengthStatistics(float(values.mean()), math.sqrt(values.var() / len(values)))
        if len(values)
        else None
    )


def describe_work(seen: Evaluation) -> RunWork:
    """What a run was to do. Lengths of its answers may be what changed, so only those asked for are
    of it."""
    lengths = _all_lengths(seen.main.outcome(OK))
    del lengths["output tokens"]
    return RunWork(_conditions(seen)["model"], lengths, seen.run.imported, _drawn_by(seen.run))


def _measured(base: Evaluation, here: Evaluation) -> Iterator[ConditionDifference]:
    """Measured conditions."""
    ok = [side.main.outcome(OK) for side in (base, here)]
    if all(part.size for part in ok):
        yield from _measured_of_answers(ok)
    verdicts = [
        "not judged" if side.verdict is None else side.verdict.level for side in (base, here)
    ]
    if verdicts != ["OK", "OK"]:
        yield ConditionDifference("client verdict", verdicts[0], verdicts[1], decisive=False)


def _measured_of_answers(ok: Sequence[RequestSelection]) -> Iterator[ConditionDifference]:
    cached = [ratio_of_sums(part["cached_tokens"], part["input_tokens"]) for part in ok]
    known = [0.0 if share is None else share for share in cached]
    apart = round(abs(known[0] - known[1]), 9)  # 52% and 50% are two points apart, not more
    if (cached[0] is None) != (cached[1] is None) or apart > MAX_CACHED_DIFFERENCE:
        was, is_ = ("unknown" if share is None else f"{share:.1%}" for share in cached)
        yield ConditionDifference("cached input", was, is_, decisive=False)
    clocks = [_clock(part) for part in ok]
    if clocks[0] != clocks[1]:
        yield ConditionDifference("clock", clocks[0], clocks[1], decisive=False)


def _in_force(base: Run, here: Run) -> Iterator[ConditionDifference]:
    """What was asked for alike, and was not the same over the runs."""
    asked = [(run.settings.users, run.settings.prefill_concurrency) for run in (base, here)]
    users = (
        find_users_in_force(run) if run.settings.users is not None else None for run in (base, here)
    )
    limits = (find_limit_in_force(run) for run in (base, here))
    for what, same, (a, b) in (
        ("users", asked[0][0] == asked[1][0], users),
        ("prefill limit", asked[0][1] == asked[1][1], limits),
    ):  # fmt: skip
        if (
            same
            and a is not None
            and b is not None
            and abs(a.mean - b.mean) > MAX_IN_FORCE_DIFFERENCE * max(a.mean, b.mean)
        ):
            yield ConditionDifference(what, _number(a.mean), _number(b.mean), decisive=True)


def _clock(ok: RequestSelection) -> str:
    """The clock of nearly all stamps."""
    if not ok.size:
        return "none"
    if ok.count("clock", "tool") == ok.size:
        return "another tool's"
    kernel = ok.count("clock", "kernel") / ok.size
    if kernel > 0.99:
        return "kernel"
    return "thread" if kernel < 0.01 else f"{kernel:.0%} kernel"


def _number(value: float) -> str:
    return f"{value:.1f} on average"


# -- sides -----------------------------------------------------------------------------------------

SCHEMA: Final = 1
"""Of run.json, the one that this program writes."""
MAX_REASONS: Final = 3
"""Unreadable lines whose reason is reported."""


class LoadedRun(NamedTuple):
    """A run to be compared."""

    folder: Path
    seen: Evaluation
    known: bool = True
    """Its run.json could be read: else nothing but its records is known of it."""
    notes: tuple[str, ...] = ()
    """Problems of its folder."""


class _Facts(msgspec.Struct):
    run: Run
    client: ClientVerdict | None = None
    outages: tuple[Outage, ...] = ()


def load_run(folder: Path) -> LoadedRun:
    """A run from its folder, as far as it can be read. Raises ValueError of one sentence where
    there are no records."""
    path = folder / RECORDS
    if not path.is_file():
        raise ValueError(f"{folder} is not a run folder: it has no {RECORDS}")
    columns, unread = read_columns(path)
    notes = list[str]()
    if not len(columns.requests):
        raise ValueError(f"{folder} is an empty run: its {RECORDS} has no record")
    if unread.count:
        first = "; ".join(unread.reasons[:MAX_REASONS])
        notes.append(
            f"{format_count(unread.count, 'unreadable line')} of {RECORDS} left out ({first})"
        )
    everything = RequestSelection(columns.requests, np.ones(len(columns.requests), np.bool_))
    profiled = columns.requests.has("phase", "profiling")
    main = everything.only(profiled)
    try:
        facts = decode_json_file(folder / RUN, _Facts)
        known = True
    except (OSError, ValueError) as error:
        why = f"cannot be read ({getattr(error, 'strerror', None) or error})"
        if isinstance(error, FileNotFoundError):
            why = "is missing"
        notes.append(f"{RUN} {why}: its settings and its client verdict are unknown")
        facts = _Facts(Run(name=folder.name, settings=Settings(), started_at=0.0, profiling_at=0.0))
        known = False
    run = find_gone_records(folder, facts.run, int(profiled.sum()))
    if run.schema != SCHEMA:
        notes.append(
            f"{RUN} has schema {run.schema}, but this version supports {SCHEMA}: it may be misread"
        )
    if known and run.stopping_at is None:
        notes.append(
            "the run did not end cleanly, so requests that were still running may be missing"
        )
    notes += run.unread
    if run.records_lost:
        notes.append(run.lost_in_words)
    within = find_measured_span(run)
    if (loaded := within or find_loaded_span(main, run)) is None:
        time = RateWindow(
            main.span(), tuple(find_pauses(main, run)) if run.settings.repeats > 1 else ()
        )
        ended = main
        settled = find_settled_window(main, time, run)
    else:
        time = RateWindow(loaded)
        ended = select_ended_in(everything, loaded)
        settled = None
    through = None if within is None else ended
    steady = measure_steady_state(everything, ended, time.span, run)
    schedule = measure_delivery(main, run, facts.client, through, steady)
    records = RecordFile(path)
    seen = Evaluation(
        main, run, facts.client, schedule, records, ended, time,
        outages=_find_outages(folder, columns, facts) if known else (),
        settled=settled,
    )  # fmt: skip
    return LoadedRun(folder, seen, known, tuple(notes))


def _find_outages(folder: Path, columns: RequestColumns, facts: _Facts) -> tuple[Outage, ...]:
    """Those of the records, and those that the stages show by themselves, from run.json."""
    try:
        readings = list_metric_readings(read_history(folder))
    except OSError:
        readings = NOTHING
    return merge_outages(find_run_outages(columns, facts.run, readings), facts.outages)


def load_matching_base(folder: Path, run: Run) -> LoadedRun | None:
    """Of a run in the folder of its base: all of it, or where that has stages, the one of the same
    value; None: it has none. Raises ValueError of one sentence for what cannot be a base."""
    if run.stage is not None and (stages := _stages(folder)):
        numbers = [stage.number for stage in stages if stage.value == run.stage.value]
        if not numbers:
            return None
        folder = folder / "stages" / str(numbers[0])
    return _base(
        folder,
        *(
            (folder / name).stat().st_mtime_ns
            for name in (RECORDS, PARTS, RUN)
            if (folder / name).exists()
        ),
    )


def _stages(folder: Path) -> tuple[Stage, ...]:
    try:
        return read_run(folder).stages
    except (OSError, ValueError):  # what is wrong with it is said when it is loaded
        return ()


@lru_cache(maxsize=2)
def _base(folder: Path, *_changed_at: int) -> LoadedRun:
    side = load_run(folder)
    if side.notes:
        raise ValueError(f"{folder}: {side.notes[0]}")
    return side
