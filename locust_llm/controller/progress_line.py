"""Progress line: how far a run is, no wider than the terminal. It is live in a terminal, and a
plain line every few seconds elsewhere."""

import logging
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TextIO

import gevent

from locust_llm.records.phase_plan import BETWEEN, PROFILING, WARMUP
from locust_llm.slo.best_prefill_limit import format_limit
from locust_llm.slo.load_generator_health import LEVELS, OK, ClientVerdict
from locust_llm.text.format import format_count, format_duration

from .early_stop import RuleStanding
from .run_controller import Controller
from .run_progress import RATE_S, WINDOW_S, RequestCounts

logger = logging.getLogger("locust_llm")

EVERY_S: Final = 1.0
"""The time between two updates of the line."""
PLAIN_EVERY: Final = 5
"""The checks between two lines where none can be overwritten."""
SEPARATOR: Final = " | "
WHERE: Final = 17
"""The characters of a phase and its seconds, which stand before the others."""
CLEAR: Final = "\r\x1b[2K"
"""Carriage return, then erase the line (ECMA-48, EL)."""


class ProgressPart(NamedTuple):
    """One part of the progress line."""

    rank: int
    """The importance: 0 stays longest where there is too little room."""
    text: str
    short: str = ""
    """The form where there is no room for all of it. Empty: there is no shorter form."""


def build_progress_parts(control: Controller, client: ClientVerdict | None) -> list[ProgressPart]:
    """The parts in the order of the line, each about as long every time."""
    stats, limit, generates = control.run_progress, control.limit, control.settings.generates
    streams = generates and control.settings.streaming
    counts = format_request_counts(control)
    parts = [
        ProgressPart(0, format_phase_position(control).ljust(WHERE)),
        ProgressPart(
            1, counts, counts.replace("all stages: ", "all:").replace("all blocks: ", "all:")
        ),
    ]
    tally = control.store.answer_tally
    if tally is not None and (leaks := tally.isolation.all_leaks):
        parts.append(ProgressPart(1, f"LEAK in {format_count(leaks, 'answer')}", f"LEAKS {leaks}"))
    if silent_s := stats.silent_s():
        parts.append(ProgressPart(1, f"no answer for {silent_s:.0f} s"))
    waits = generates and (control.settings.open_loop or limit is not None)
    name = "TTFT from due" if waits else "TTFT"
    if first_ms := stats.first_token_ms(50, 99, from_due=waits):
        p50, p99 = (f"{format_duration(ms / 1e3):>6}" for ms in first_ms)
        parts.append(
            ProgressPart(
                4,
                f"last {WINDOW_S} s: {name} p50 {p50}, p99 {p99}",
                f"{WINDOW_S} s: {name} p50 {p50}",
            )
        )
    if limit is None:
        state = "awaiting first token" if streams else "in flight"
        parts.append(
            ProgressPart(
                5,
                f"{stats.used:>3} {state}",
                f"{stats.used:>3} {state.removesuffix(' first token')}",
            )
        )
    else:
        parts.append(
            ProgressPart(
                5,
                f"prefill {stats.used:>2}/{limit}, {stats.waiting:>3} waiting",
                f"{stats.waiting:>3} waiting",
            )
        )
    if control.stages is not None and (known_so_far := control.stages.describe_capacity()):
        parts.append(ProgressPart(1, known_so_far))
    if generates:
        rate = f"last {RATE_S:g} s: {stats.tokens_per_s():>5.0f} "
        unit = stats.token_rate_unit
        parts.append(ProgressPart(6, f"{rate}{unit}", f"{rate}{unit.partition(',')[0]}"))
    if streams:
        parts.append(ProgressPart(7, f"{stats.decoding:>3} decoding"))
    rules = control.abort.standing()
    if rules.known:
        parts.append(ProgressPart(2 if rules.broken else 8, format_rule_standing(rules)))
    parts += _describe_client(control, client)
    return parts


def format_rule_standing(rules: RuleStanding) -> str:
    """``1 of 4 rules not met so far, 1 without a value, 1 judged at the end``. It is of what was
    counted until now, without an interval: the end may decide otherwise."""
    met = "not met" if rules.broken else "met"
    parts = [f"{rules.broken or rules.known} of {format_count(rules.all, 'rule')} {met} so far"]
    if without := rules.all - rules.known - rules.later:
        parts.append(f"{without} without a value")
    if rules.later:
        parts.append(f"{rules.later} judged at the end")
    return ", ".join(parts)


def _describe_client(control: Controller, client: ClientVerdict | None) -> Iterator[ProgressPart]:
    """Each stage of a sweep has its own client verdict. What the report of a stage will find is
    not known before, so OK is written of a whole run only."""
    stages = control.stages
    swept = stages is not None and not stages.repeats
    verdicts = "" if stages is None or stages.repeats else stages.describe_client_verdicts()
    if verdicts:
        yield ProgressPart(3, f"client {verdicts}")
    if client is None or (swept and client.level == OK):
        return
    level = f"client {client.level}"
    yield ProgressPart(
        9 if client.level == OK else 3, f"{level}{' in this stage' * swept} so far", level
    )


def format_phase_position(control: Controller) -> str:
    """The phase or stage, and how far it is."""
    phase, s, elapsed_s = control.plan.phase, control.settings, control.phase_s
    if control.draining:
        return f"ending {elapsed_s:.0f} s"
    if activity := control.run_progress.activity:
        return activity
    if phase == BETWEEN:
        return phase
    if control.stages is not None and phase != WARMUP:
        return f"{control.stages}, {elapsed_s:.0f} s"
    lasts_s = {WARMUP: s.warmup_duration, PROFILING: s.longest_s}.get(phase)
    block = control.limit_block
    if block is not None and block.round:
        phase = f"round {block.round}, limit {format_limit(block.limit)},"
    if lasts_s is None:
        return f"{phase} {elapsed_s:.0f} s"
    return f"{phase} {min(elapsed_s, lasts_s):.0f}/{lasts_s:.0f} s"


def format_request_counts(control: Controller) -> str:
    """The requests of this phase: ``36 ok, 56 failed``, or with a requested number ``95/200: 36 ok,
    56 failed, 3 cancelled``. A sweep counts over all its stages: ``all stages: 36 ok, 56
    failed``."""
    stats, s = control.run_progress, control.settings
    warms = control.plan.phase == WARMUP
    counts = stats.count_phase(WARMUP if warms else PROFILING)
    if control.stages is not None and not warms:
        what = "blocks" if s.compares else "stages"
        return f"all {what}: {_write_counts(counts)}"
    planned = s.warmup_request_count if warms else s.request_count
    if planned is None:
        return _write_counts(counts)
    return f"{sum(counts):>4}/{planned}: {_write_counts(counts).lstrip()}"


def _write_counts(counts: RequestCounts) -> str:
    ended = "".join(f", {count} {word}" for word, count in counts.ended_by_us.items())
    return f"{counts.ok:>4} ok, {counts.failed} failed{ended}"


def fit_progress_line(parts: Sequence[ProgressPart], columns: int) -> str:
    """As many parts as there is room for: each by its rank in its short form, then whole where
    there is room."""
    shown: dict[int, str] = {}
    by_rank = sorted(range(len(parts)), key=lambda i: parts[i].rank)
    for whole in (False, True):
        for i in by_rank:
            more = shown | {i: parts[i].text if whole else parts[i].short or parts[i].text}
            if not shown or len(_line(more)) <= columns:
                shown = more
    return _line(shown)[:columns]


def _line(shown: Mapping[int, str]) -> str:
    return SEPARATOR.join(shown[i] for i in sorted(shown))


def show_run_progress(control: Controller, out: TextIO = sys.stderr) -> None:
    """Update the line once a second in a greenlet, until it is killed."""
    live = is_live_terminal(out)
    with suppress(OSError):  # nobody reads it any more
        _look(control, out, live)


def _look(control: Controller, out: TextIO, live: bool) -> None:
    looks = 0
    try:
        while True:
            gevent.sleep(EVERY_S)
            looks += 1
            if live or looks % PLAIN_EVERY == 0:
                verdict = control.run_progress.client()
                line = explain_improvement(control.run_progress.shown_client, verdict)
                if line and not control.draining:  # the report is near, and has the last word
                    logger.info(line)
                parts = build_progress_parts(control, verdict)
                line = fit_progress_line(
                    parts, terminal_width(out) - 1
                )  # in the last column it would begin the next line
                fits = verdict is not None and f"client {verdict.level}" in line
                control.run_progress.shown_client = verdict if fits else None
                out.write(CLEAR + line if live else f"{line}\n")
            out.flush()
    finally:
        if live:
            out.write(CLEAR)
            out.flush()


def explain_improvement(before: ClientVerdict | None, now: ClientVerdict | None) -> str:
    """Explains a verdict that was shown and is better now. Empty: it is not. The report judges the
    whole run, so neither of the two is final."""
    if before is None or LEVELS.index(before.level) <= LEVELS.index(now.level if now else OK):
        return ""
    level = OK if now is None else now.level
    reasons = "; ".join(before.reasons)
    return (
        f"The client verdict so far is {level}, no longer {before.level} ({reasons}). The report "
        "judges the whole run."
    )


def is_live_terminal(out: TextIO) -> bool:
    """A line can be overwritten there."""
    return out.isatty() and os.environ.get("TERM") != "dumb"


def terminal_width(out: TextIO) -> int:
    try:
        return os.get_terminal_size(out.fileno()).columns or 80
    except (OSError, ValueError):
        return shutil.get_terminal_size().columns


class LiveLineFilter(logging.Filter):
    """Clears the live line before a log line, which would be glued to it. The line comes back
    within a second.

    Other processes of the same terminal (``--processes``) do so too, as each writes its own log
    lines.
    """

    def __init__(self, out: TextIO) -> None:
        super().__init__()
        self._out = out

    def filter(self, record: logging.LogRecord) -> bool:
        self._out.write(CLEAR)
        return True


def keep_logs_off_live_line(loggers: Sequence[str] = ("", "locust", "locust.stats_logger")) -> None:
    """Keep log lines and the live line apart, on every console of these loggers."""
    handlers = set[logging.Handler]()
    for name in loggers:
        handlers.update(logging.getLogger(name).handlers)
    for handler in handlers:
        if not isinstance(handler, logging.StreamHandler):
            continue
        has_filter = any(isinstance(known, LiveLineFilter) for known in handler.filters)
        if is_live_terminal(handler.stream) and not has_filter:
            handler.addFilter(LiveLineFilter(handler.stream))
