"""The progress line: one live line on a terminal, a plain one every few seconds elsewhere."""

import logging
import os
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, TextIO

import gevent

from locust_llm.core.phases import BETWEEN, PROFILING, WARMUP
from locust_llm.core.text import duration
from locust_llm.slo.client_verdict import Verdict

from .control import Control

EVERY_S: Final = 1.0
"""Between two looks."""
PLAIN_EVERY: Final = 5
"""Looks between two lines where none can be written over."""
SEPARATOR: Final = " | "
CLEAR: Final = "\r\x1b[2K"
"""Carriage return, then erase the line (ECMA-48, EL)."""


def parts(control: Control, elapsed_s: float, client: Verdict | None) -> list[str]:
    """Parts of the line, the most important first. ``elapsed_s``: of this phase."""
    stats, total = control.live_stats, _total(control)
    found = [
        where(control, elapsed_s),
        f"{stats.done}{total} request{'s' * (total != '' or stats.done != 1)}",
        f"{stats.failed} failed",
    ]
    if ttft_ms := stats.recent_ttft.histogram().percentiles_ms(50, 99):
        found.append(f"TTFT p50 {duration(ttft_ms[0] / 1e3)}, p99 {duration(ttft_ms[1] / 1e3)}")
    if control.settings.generates:
        found.append(f"{stats.tokens_per_s():.0f} tokens/s")
    limit = control.limit
    found.append(f"{stats.used} in prefill" if limit is None else f"gate {stats.used}/{limit}, {stats.waiting} waiting")
    if control.settings.generates:
        found.append(f"{stats.decoding} decoding")
    broken, known = control.abort.standing()
    if known:
        found.append(
            f"SLO {broken} of {known} beyond the limit so far"
            if broken
            else f"SLO {known} of {known} within the limit so far"
        )
    if client is not None:
        found.append(f"client {client.level}")
    return found


def where(control: Control, elapsed_s: float) -> str:
    """Which phase or stage, and how far it is."""
    phase, s = control.plan.phase, control.settings
    if control.draining:
        return f"ending {elapsed_s:.0f} s"
    if activity := control.live_stats.activity:
        return activity
    if phase == BETWEEN:
        return phase
    if control.stages is not None and phase != WARMUP:
        return f"{control.stages}, {elapsed_s:.0f} s"
    lasts_s = s.warmup_duration if phase == WARMUP else s.longest_s if phase == PROFILING else None
    return f"{phase} {elapsed_s:.0f} s" if lasts_s is None else f"{phase} {min(elapsed_s, lasts_s):.0f}/{lasts_s:.0f} s"


def _total(control: Control) -> str:
    s = control.settings
    if s.request_count is None or control.stages is not None:
        return ""
    return f"/{s.request_count + (s.warmup_request_count or 0)}"


def fitted(found: Iterable[str], columns: int) -> str:
    """As many of the parts as there is room for."""
    line = ""
    for part in found:
        longer = f"{line}{SEPARATOR}{part}" if line else part[:columns]
        line = longer if len(longer) <= columns else line
    return line


def progress(control: Control, out: TextIO = sys.stderr) -> None:
    """The greenlet: looks once a second, until it is killed."""
    live = lives(out)
    with suppress(OSError):  # nobody reads it any more
        _look(control, out, live)


def _look(control: Control, out: TextIO, live: bool) -> None:
    phase, since, looks = "", time.monotonic(), 0
    try:
        while True:
            gevent.sleep(EVERY_S)
            looks += 1
            now, before = time.monotonic(), phase
            phase = f"{control.plan.phase}{control.draining}"
            if before not in ("", phase):
                since = now
            if live:
                found = parts(control, now - since, control.live_stats.client())
                out.write(CLEAR + fitted(found, width(out) - 1))  # in the last column it would begin the next line
            elif looks % PLAIN_EVERY == 0:
                out.write(SEPARATOR.join(parts(control, now - since, control.live_stats.client())) + "\n")
            out.flush()
    finally:
        if live:
            out.write(CLEAR)
            out.flush()


def lives(out: TextIO) -> bool:
    """A line can be written over there."""
    return out.isatty() and os.environ.get("TERM") != "dumb"


def width(out: TextIO) -> int:
    try:
        return os.get_terminal_size(out.fileno()).columns or 80
    except (OSError, ValueError):
        return shutil.get_terminal_size().columns


class Apart(logging.Filter):
    """Clears the live line before a log line, which would be glued to it. It comes back within a second.

    Other processes of the same terminal (``--processes``) do so too: each writes its own log lines.
    """

    def __init__(self, out: TextIO) -> None:
        super().__init__()
        self._out = out

    def filter(self, record: logging.LogRecord) -> bool:
        self._out.write(CLEAR)
        return True


def keep_apart(loggers: Sequence[str] = ("", "locust", "locust.stats_logger")) -> None:
    """Log lines and the live line, on every console that these loggers write to."""
    for handler in {handler for name in loggers for handler in logging.getLogger(name).handlers}:
        apart = any(isinstance(known, Apart) for known in handler.filters)
        if isinstance(handler, logging.StreamHandler) and lives(handler.stream) and not apart:
            handler.addFilter(Apart(handler.stream))
