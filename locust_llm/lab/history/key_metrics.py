"""Key metrics: the few of each run that the history keeps, named as rules name them."""

from collections.abc import Callable
from typing import Final, NamedTuple

from locust_llm.lab.interop.load_metrics import Distribution, Figures
from locust_llm.text.format import format_brief


class KeyFigure(NamedTuple):
    """Of a load, as a number; None where its result does not say."""

    name: str
    label: str
    of: Callable[[Figures], float | None]
    rises: bool = False
    """More is better."""
    tag: str = ""
    """Of its measure in run.json, where the plus-minus is; empty: it has none."""
    percentile: float = 0.0
    unit: str = "s"
    """Seconds, shown as ms; ``share``, shown in %; ``/s``."""

    def said(self, value: float | None, digits: int = 4) -> str:
        """``412.3 ms``, ``12.4/s``, ``0.5%``."""
        if self.unit == "s":
            return format_brief(None if value is None else value * 1e3, " ms", digits)
        if self.unit == "share":
            return format_brief(None if value is None else value * 100, "%", digits)
        return format_brief(value, "/s", digits)


def _time(
    word: str, label: str, tag: str, percentile: float, of: Callable[[Figures], Distribution]
) -> KeyFigure:
    name, title = f"{word}_p{percentile:g}", f"{label} p{percentile:g}"
    return KeyFigure(
        name,
        title,
        lambda load: of(load).percentiles.get(percentile),
        tag=tag,
        percentile=percentile,
    )


def _error_rate(load: Figures) -> float | None:
    ended = None if load.requests is None else load.requests + load.failed
    return load.failed / ended if ended else None


KEY_FIGURES: Final = (
    *(
        _time("ttft", "TTFT", "time_to_first_token", p, lambda load: load.ttft)
        for p in (50.0, 95.0, 99.0)
    ),
    *(_time("itl", "ITL", "inter_token_latency", p, lambda load: load.tpot) for p in (50.0, 99.0)),
    _time("icl", "ICL", "inter_chunk_latency", 99.0, lambda load: load.itl),
    _time("request_latency", "Latency", "request_latency", 99.0, lambda load: load.latency),
    KeyFigure(
        "requests_per_s", "Requests/s", lambda load: load.requests_per_s, rises=True, unit="/s"
    ),
    KeyFigure(
        "output_tokens_per_s",
        "Output tokens/s",
        lambda load: load.output_tokens_per_s,
        rises=True,
        unit="/s",
    ),
    KeyFigure("goodput", "Goodput", lambda load: load.goodput_per_s, rises=True, unit="/s"),
    KeyFigure("error_rate", "Failures", _error_rate, unit="share"),
)
"""ITL is of each request (TPOT elsewhere), ICL each gap between two chunks."""
BY_NAME: Final = {figure.name: figure for figure in KEY_FIGURES}
OTHER_NAMES: Final = {
    "tpot_p50": "itl_p50", "tpot_p99": "itl_p99", "latency_p99": "request_latency_p99",
    "failures": "error_rate",
    "request_throughput": "requests_per_s", "output_token_throughput": "output_tokens_per_s",
}  # fmt: skip


def key_figure_by_name(word: str) -> KeyFigure:
    """Also by the words of other tools. Raises ValueError of one sentence."""
    word = word.strip().lower().replace(" ", "_").replace("-", "_")
    if (found := BY_NAME.get(OTHER_NAMES.get(word, word))) is None:
        raise ValueError(
            f"no figure of the history is called {word[:40]!r}: there are {', '.join(BY_NAME)}"
        )
    return found
