"""Watch: the session of a canary, a round after the other until it is over, each with its line on
the console and in the file."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Final

import msgspec
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from locust_llm.exit_status import ExitStatus
from locust_llm.files.regular_file import open_to_append
from locust_llm.lab.canary.model import (
    MIN_GAPS,
    BackgroundLoad,
    CanaryRound,
    estimate_background_load,
    has_calm_rounds,
)
from locust_llm.text.format import format_brief, format_count, format_duration

FILE: Final = "canary.jsonl"
PREFIX: Final = "locust_llm_canary_"
MIN_RATE_S: Final = 1.0
"""Of a shorter time watched the line has the number of stalls in place of a rate."""


def _format_two_digits(tokens: float) -> str:
    """Writes a number of tokens in two digits."""
    return f"{float(f'{tokens:.2g}'):,.0f}"


def _stalled(load: BackgroundLoad, *, ends: bool = True) -> str:
    """``18% of the time (12% to 25%), 2.8 stalls/s``"""
    reach = ""
    if ends and load.low is not None and load.high is not None:
        reach = f" ({load.low:.0%} to {load.high:.0%})"
    count = format_brief(load.stalls_per_s, " stalls/s", 2)
    if load.watched_s < MIN_RATE_S:
        count = f"{format_count(load.stalls, 'stall')} in {format_duration(load.watched_s)}"
    return f"{load.lost:.0%} of the time{reach}, {count}"


class CanaryPlan(msgspec.Struct, frozen=True, kw_only=True):
    every_s: float
    for_s: float
    window_s: float
    """What *now* is: the rounds of so many seconds."""
    output_tokens: int
    input_tokens: int
    """About so many."""
    token_s: float | None = None
    """What a token of a prompt takes the server; None: unknown."""

    @property
    def promise(self) -> str:
        """What it will send at most."""
        an_hour = math.ceil(3600 / self.every_s)
        requests = math.ceil(self.for_s / self.every_s)
        hourly = f" ({an_hour:,} an hour)" if requests > an_hour else ""
        return (
            f"at most {format_count(requests, 'request')}{hourly}, one at a time, each with a text of "
            f"about {self.input_tokens} tokens, "
            f"to which the server adds its template, and an answer of {self.output_tokens}"
        )


class CanarySession(Collector):
    """All rounds so far. A collector of Prometheus."""

    def __init__(self, plan: CanaryPlan, folder: Path, say: Callable[[str], object]) -> None:
        self.plan, self._folder, self._say = plan, folder, say
        self.rounds: list[CanaryRound] = []
        self.failed = 0

    def run(
        self,
        ask: Callable[[], CanaryRound],
        wait: Callable[[float], bool],
        now: Callable[[], float],
    ) -> int:
        """The exit status. ``wait(seconds)``: True: it is to end; ``now()``: seconds on a monotonic
        clock."""
        began = now()
        stopped = False
        number = 0
        while not stopped and number * self.plan.every_s < self.plan.for_s:
            self.add(ask())
            # a slow one skips others
            number = max(number + 1, int((now() - began) / self.plan.every_s) + 1)
            stopped = wait(max(began + number * self.plan.every_s - now(), 0.0))
        self._say(f"\n{self.summary()}\n")
        answered = len(self.rounds) - self.failed
        if not answered:
            return ExitStatus.INCOMPLETE
        return ExitStatus.FAILED_REQUESTS if self.failed else ExitStatus.OK

    def add(self, sample: CanaryRound) -> None:
        self.rounds.append(sample)
        self.failed += bool(sample.error)
        try:
            with open(open_to_append(self._folder / FILE), "ab") as file:
                file.write(msgspec.json.encode(sample) + b"\n")
        except OSError as error:
            self._say(f"{self._folder / FILE} could not be written: {error.strerror or error}\n")
        self._say(f"{time.strftime('%H:%M:%S', time.localtime(sample.at))}  {self.line()}\n")

    @property
    def now(self) -> BackgroundLoad | None:
        """Estimates the background load of the last minutes."""
        return estimate_background_load(self._recent, self.rounds)

    @property
    def _recent(self) -> list[CanaryRound]:
        last = self.rounds[-1].at if self.rounds else 0.0
        return [sample for sample in self.rounds if sample.at > last - self.plan.window_s]

    def line(self) -> str:
        """Describes the last round, and the last minutes."""
        sample = self.rounds[-1]
        if sample.error:
            return f"no answer: {sample.error}"
        here = f"TTFT {format_duration(sample.ttft_s)}, {format_count(sample.gaps, 'gap')}"
        if sample.quiet_s is None:
            why = (
                "too few to tell anything"
                if sample.gaps < MIN_GAPS
                else "most chunks came together: no usual gap"
            )
            return f"{here}: {why}"
        here += f" of {format_duration(sample.quiet_s)}, {format_count(sample.stalls, 'stall')}"
        background = self.now
        return (
            here
            if background is None
            else f"{here:52} | {self.of_others(background, self._recent)}"
        )

    def of_others(self, background: BackgroundLoad, samples: Sequence[CanaryRound]) -> str:
        """What others cause, in words, or why nobody can say so. ``samples``: the rounds of
        ``background``."""
        slower = f"usual gap {background.slower:.0%} above the lowest"
        counted = [sample.others for sample in samples if sample.quiet_s is not None]
        nobody = all(others is False for others in counted)
        if not background.stalls:
            who = "nobody else by the server's counters" if nobody else "others: prefill 0%"
            rate = background.watched_s >= MIN_RATE_S
            most = (
                f" (at most {format_brief(background.most_stalls_per_s, '/s', 2)})" if rate else ""
            )
            none = f"no stall in {format_duration(background.watched_s)} watched{most}"
            return f"{who}, {none}; {slower}"
        if nobody:
            noise = "noise of the server or its machine"
            return (
                f"nobody else by the server's counters: {noise} held the stream up "
                f"{_stalled(background)}; {slower}"
            )
        if not any(counted) and not has_calm_rounds(self.rounds):
            either = (
                "others' prefills or the server's own noise, no quiet time was seen yet to "
                "tell them apart"
            )
            return f"stalls: {_stalled(background)} ({either}); {slower}"
        theirs = estimate_background_load(samples, self.rounds, without_noise=True) or background
        text = f"others: prefill {_stalled(theirs)}"
        if self.plan.token_s is not None:
            tokens, low, high = theirs.tokens_per_s(self.plan.token_s)
            reach = (
                ""
                if low is None or high is None
                else f" ({_format_two_digits(low)} to {_format_two_digits(high)})"
            )
            text += f", {_format_two_digits(tokens)} prompt tokens/s{reach}"
        alone = estimate_background_load(
            [sample for sample in samples if sample.others is False], self.rounds
        )
        if alone is not None:
            rounds = format_count(alone.rounds, "round")
            text += f" (noise, in {rounds} without others: {_stalled(alone, ends=False)})"
        return f"{text}; {slower}"

    def summary(self) -> str:
        """Describes all rounds."""
        head = (
            f"{format_count(len(self.rounds), 'round')}, {self.failed} without an answer, in "
            f"{self._folder / FILE}"
        )
        counts = [sample.input_tokens for sample in self.rounds if sample.input_tokens is not None]
        prompts = (
            f", prompts of {median(counts):.0f} tokens by the server's count" if counts else ""
        )
        background = estimate_background_load(self.rounds, self.rounds)
        if background is None:
            return f"{head}{prompts}. No round had enough gaps to tell what others do."
        return (
            f"{head}{prompts}.\nTTFT {format_duration(background.ttft_s)} (median); "
            f"{self.of_others(background, self.rounds)}."
        )

    def collect(self) -> Iterator[Metric]:
        counter = CounterMetricFamily(
            f"{PREFIX}rounds", "Canary streams, by what became of them", labels=("outcome",)
        )
        counter.add_metric(("ok",), len(self.rounds) - self.failed)
        counter.add_metric(("failed",), self.failed)
        yield counter
        if not self.rounds or self.rounds[-1].error or (background := self.now) is None:
            return  # the last values would look like a server that answers
        others = self.rounds[-1].others
        tokens = (
            (None, None, None)
            if self.plan.token_s is None
            else background.tokens_per_s(self.plan.token_s)
        )
        for name, text, value in (
            ("prefill_share", "Share of a stream's time lost in stalls, by others or by noise",
                background.lost),
            ("prefill_share_low", "Lower end of its 95% interval", background.low),
            ("prefill_share_high", "Upper end of its 95% interval", background.high),
            ("others_present", "1: the server counted requests of others beside the last canary",
                others),
            ("stalls_per_second", "Stalls by prefills of others or by noise", background.stalls_per_s),
            ("prompt_tokens_per_second", "Prompt tokens of others, by the price of a token",
                tokens[0]),
            ("prompt_tokens_per_second_low", "Lower end of its 95% interval", tokens[1]),
            ("prompt_tokens_per_second_high", "Upper end of its 95% interval", tokens[2]),
            ("slower_ratio", "Usual gap over the lowest of the session, less one: decodes of others", background.slower),
            ("quiet_gap_seconds", "Usual gap without a stall", background.quiet_s),
            ("time_to_first_token_seconds", "Of the last canary stream", self.rounds[-1].ttft_s),
        ):  # fmt: skip
            if value is not None:
                yield GaugeMetricFamily(PREFIX + name, text, value)
