"""The progress line: what it says, by pencil, and how it looks on a terminal and in a log."""

import io
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import unpatched_locust  # noqa: F401  before the rest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm import progress as module
from locust_llm.progress import progress, quantile, sentence
from locust_llm.settings import Settings


def control(**known: Any) -> Any:
    fields: dict[str, Any] = {
        "counts": Counter(),
        "settings": Settings(),
        "plan": SimpleNamespace(phase="profiling"),
        "stand": {},
        "limit": None,
        "ttfts_s": [],
        "output_tokens": 0,
        "flush": lambda: None,
    }
    return SimpleNamespace(**{**fields, **known})


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=30), st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_numpys(values: list[float], q: float) -> None:
    assert quantile(values, q) == pytest.approx(np.quantile(values, q))
    assert quantile([], q) is None


def test_a_sentence_sums_over_processes_and_counts_what_was_cut_as_not_done() -> None:
    gated = control(
        counts=Counter(ok=40, reset=2, cut=5, cancelled=1),
        settings=Settings(request_count=100, warmup_request_count=10),
        stand={"a": (2, 10, 4), "b": (1, 3, 5)},
        limit=3,
    )
    assert sentence(gated, 12.4, [0.1, 0.2], 305.4) == (
        "profiling 12 s | 42/110 requests done | gate 3/3, 13 waiting | 9 decoding | TTFT p50 150 ms, p99 199 ms | "
        "305 tokens/s | 2 failed"
    )


def test_a_sentence_at_the_start_without_a_gate() -> None:
    assert sentence(control(), 1.0, [], 0.0) == (
        "profiling 1 s | 0 requests done | 0 in prefill | 0 decoding | 0 tokens/s | 0 failed"
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Killed(BaseException):
    pass


def watch(monkeypatch: pytest.MonkeyPatch, out: io.StringIO, seconds: int, each_second: Callable[[Any], None]) -> None:
    """The greenlet, on a clock of its own, for so many seconds."""
    now, watched = [100.0], control()

    def sleep(pause_s: float) -> None:
        now[0] += pause_s
        if now[0] > 100 + seconds:
            raise Killed
        each_second(watched)

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(module, "gevent", SimpleNamespace(sleep=sleep))
    with pytest.raises(Killed):
        progress(watched, out)


def twenty_tokens_a_second(watched: Any) -> None:
    watched.output_tokens += 20


def test_a_log_gets_a_line_every_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    watch(monkeypatch, out, 17, twenty_tokens_a_second)
    lines = out.getvalue().splitlines()
    assert [line.partition(" | ")[0] for line in lines] == ["profiling 5 s", "profiling 10 s", "profiling 15 s"]
    assert all("| 20 tokens/s |" in line for line in lines)


def test_a_terminal_gets_one_line_that_is_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    watch(monkeypatch, out, 3, twenty_tokens_a_second)
    assert "\n" not in out.getvalue()
    told = [line.partition(" | ")[0] for line in out.getvalue().split("\r\x1b[2K")]
    assert told == ["", "profiling 1 s", "profiling 2 s", "profiling 3 s", ""]


def test_only_the_last_ten_seconds_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second of first tokens after 2,000 ms, then nothing but 100 ms."""
    ttfts = iter([2.0] + [0.1] * 30)
    out = io.StringIO()
    watch(monkeypatch, out, 20, lambda watched: watched.ttfts_s.append(next(ttfts)))
    worst = [line.partition("p99 ")[2].partition(" ms")[0] for line in out.getvalue().splitlines()]
    # of 5 and of 10 values: 0.1 + 0.96 * 1.9 and 0.1 + 0.91 * 1.9
    assert worst == ["1924", "1829", "100", "100"]
