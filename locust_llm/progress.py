"""The progress line: one live line on a terminal, a plain one every few seconds elsewhere."""

import sys
import time
from collections import deque
from typing import Final, TextIO

import gevent

from .control import Control
from .record import CANCELLED, CUT, OK

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


def sentence(control: Control, elapsed_s: float, ttfts_s: list[float], tokens_per_s: float) -> str:
    """What the line says; TTFT of the first chunks and tokens of the requests that came within ``WINDOW_S``."""
    done = sum(count for outcome, count in control.counts.items() if outcome not in (CUT, CANCELLED))
    total = control.settings.request_count
    if total is not None:
        total += control.settings.warmup_request_count or 0
    parts = [f"{control.plan.phase} {elapsed_s:.0f} s", f"{done}{f'/{total}' if total else ''} requests done"]
    used, waiting, decoding = (sum(column) for column in zip((0, 0, 0), *control.stand.values(), strict=True))
    if control.limit is None:
        parts.append(f"{used} in prefill")
    else:
        parts.append(f"gate {used}/{control.limit}, {waiting} waiting")
    parts.append(f"{decoding} decoding")
    p50, p99 = quantile(ttfts_s, 0.5), quantile(ttfts_s, 0.99)
    if p50 is not None and p99 is not None:
        parts.append(f"TTFT p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms")
    parts += [f"{tokens_per_s:.0f} tokens/s", f"{done - control.counts[OK]} failed"]
    return " | ".join(parts)


def progress(control: Control, out: TextIO = sys.stderr) -> None:
    """The greenlet: looks once a second, until it is killed."""
    window: deque[tuple[float, int, list[float]]] = deque()
    live = out.isatty()
    started = said_at = time.monotonic()
    try:
        while True:
            gevent.sleep(1.0)
            now = time.monotonic()
            ttfts_s, control.ttfts_s = control.ttfts_s, []
            window.append((now, control.output_tokens, ttfts_s))
            while now - window[0][0] > WINDOW_S:
                window.popleft()
            control.flush()
            since, before, _ = window[0] if now - started > WINDOW_S else (started, 0, [])
            rate = (control.output_tokens - before) / max(1e-9, now - since)
            text = sentence(control, now - started, [ttft for *_, part in window for ttft in part], rate)
            if live:
                out.write(f"\r\x1b[2K{text[:150]}")
            elif now - said_at >= PLAIN_EVERY_S:
                said_at = now
                out.write(text + "\n")
            out.flush()
    finally:
        if live:
            out.write("\r\x1b[2K")
            out.flush()
