"""The progress line: one live line on a terminal, a plain one every few seconds elsewhere."""

import sys
import time
from collections import deque
from collections.abc import Iterable
from typing import Final, TextIO

import gevent

from .control import Control
from .record import CANCELLED, CUT, OK, Record

WINDOW_S: Final = 10.0
PLAIN_EVERY_S: Final = 5.0


def quantile(values: list[float], q: float) -> float | None:
    """Linear interpolation between the closest ranks."""
    if not values:
        return None
    values = sorted(values)
    place = q * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


def sentence(control: Control, elapsed_s: float, window: Iterable[Record]) -> str:
    """What the line says; times and rates of the requests that ended within ``WINDOW_S``."""
    records = list(window)
    done = sum(count for outcome, count in control.counts.items() if outcome not in (CUT, CANCELLED))
    total = control.settings.request_count
    if total is not None:
        total += control.settings.warmup_request_count or 0
    parts = [f"{control.plan.phase} {elapsed_s:.0f} s", f"{done}{f'/{total}' if total else ''} requests"]
    ttft = [record.ttft_s for record in records if record.ttft_s is not None]
    for name, q in (("p50", 0.5), ("p99", 0.99)):
        if (value := quantile(ttft, q)) is not None:
            parts.append(f"TTFT {name} {value * 1000:.0f} ms")
    tokens = sum(record.output_tokens or 0 for record in records)
    parts.append(f"{tokens / max(1e-9, min(WINDOW_S, elapsed_s)):.0f} tok/s")
    used, waiting = (
        (sum(column) for column in zip(*control.gate_now.values(), strict=True)) if control.gate_now else (0, 0)
    )
    if control.limit is not None:
        parts.append(f"gate {used}/{control.limit}, {waiting} waiting")
    failures = done - control.counts[OK]
    parts.append(f"{failures} failed")
    return " | ".join(parts)


def progress(control: Control, out: TextIO = sys.stderr) -> None:
    """The greenlet: looks once a second, until it is killed."""
    window: deque[tuple[float, Record]] = deque()
    live = out.isatty()
    started = time.monotonic()
    said_at = started
    try:
        while True:
            gevent.sleep(1.0)
            now = time.monotonic()
            fresh, control.recent = control.recent, []
            window.extend((now, record) for record in fresh)
            while window and now - window[0][0] > WINDOW_S:
                window.popleft()
            control.flush()
            text = sentence(control, now - started, (record for _, record in window))
            if live:
                out.write(f"\r\x1b[2K{text[:150]}")
                out.flush()
            elif now - said_at >= PLAIN_EVERY_S:
                said_at = now
                out.write(text + "\n")
                out.flush()
    finally:
        if live:
            out.write("\r\x1b[2K")
            out.flush()
