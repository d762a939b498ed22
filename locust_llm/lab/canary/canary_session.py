"""Canary session: sends one round after the other, and writes a line for each to
the console and the file."""

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
from locust_llm.lab.canary.canary_arithmetic import (
    FAR_LONGER,
    MIN_GAPS,
    BackgroundLoad,
    CanaryRound,
    estimate_background_load,
    find_far_longer_stall,
    has_calm_rounds,
)
from locust_llm.text.format import format_brief, format_count, format_duration

FILE: Final = "canary.jsonl"
PREFIX: Final = "locust_llm_canary_"
MIN_RATE_S: Final = 1.0
"""A line over a shorter time shows the number of stalls instead of their rate."""


def _format_two_digits(tokens: float) -> str:
    """Formats a number of tokens with two significant digits."""
    return f"{float(f'{tokens:.2g}'):,.0f}"


def _format_stalls(load: BackgroundLoad, *, with_interval: bool = True) -> str:
    """Formats the lost share, such as ``18% of the time (12% to 25%), 2.8 stalls/s``."""
    reach = ""
    if with_interval and load.low is not None and load.high is not None:
        reach = f" ({load.low:.0%} to {load.high:.0%})"
    count = format_brief(load.stalls_per_s, " stalls/s", 2)
    if load.watched_s < MIN_RATE_S:
        count = f"{format_count(load.stalls, 'stall')} in {format_duration(load.watched_s)}"
    return f"{load.lost:.0%} of the time{reach}, {count}"


class CanaryPlan(msgspec.Struct, frozen=True, kw_only=True):
    every_s: float
    for_s: float
    window_s: float
    """The rounds of the last seconds, this many, describe the current load."""
    output_tokens: int
    input_tokens: int
    """The prompt has about this many tokens."""
    token_s: float | None = None
    """The server takes this time to prefill one prompt token. None: unknown."""

    @property
    def promise(self) -> str:
        """Describes the most that the session will send."""
        an_hour = math.ceil(3600 / self.every_s)
        requests = math.ceil(self.for_s / self.every_s)
        hourly = f" ({an_hour:,} an hour)" if requests > an_hour else ""
        return (
            f"at most {format_count(requests, 'request')}{hourly}, one at a time, each with about "
            f"{self.input_tokens} input tokens (plus the server's template) and "
            f"{self.output_tokens} output tokens"
        )


class CanaryResult(msgspec.Struct, frozen=True, kw_only=True):
    """The output of ``locust-llm canary --json`` at its end."""

    file: str
    """The path of canary.jsonl, which has a line for each round."""
    rounds: int
    """The number of rounds that were sent."""
    failed: int
    """The number of rounds without an answer."""
    load: BackgroundLoad | None
    """The load of other clients over all rounds. null: no round had enough gaps."""
    summary: str
    """The result in words."""


class CanarySession(Collector):
    """Keeps all rounds of a session, and exports them to Prometheus."""

    def __init__(self, plan: CanaryPlan, folder: Path, say: Callable[[str], object]) -> None:
        self.plan = plan
        self._folder = folder
        self._say = say
        self.rounds: list[CanaryRound] = []
        self.failed = 0

    def run(
        self,
        ask: Callable[[], CanaryRound],
        wait: Callable[[float], bool],
        now: Callable[[], float],
    ) -> int:
        """Runs the session and returns the exit status. ``wait(seconds)`` returns True to end it.
        ``now()`` returns seconds of a monotonic clock."""
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
        measured = f"TTFT {format_duration(sample.ttft_s)}, {format_count(sample.gaps, 'gap')}"
        if sample.quiet_s is None:
            why = (
                "too few for a result"
                if sample.gaps < MIN_GAPS
                else "most chunks came together: no usual gap"
            )
            return f"{measured}: {why}"
        measured += f" of {format_duration(sample.quiet_s)}, {format_count(sample.stalls, 'stall')}"
        background = self.now
        if background is None:
            return measured
        return f"{measured:52} | {self.describe_others(background, self._recent)}"

    def describe_others(self, background: BackgroundLoad, samples: Sequence[CanaryRound]) -> str:
        """Describes the load of others, or why it is unknown. ``background`` was estimated from
        ``samples``."""
        stall_s = find_far_longer_stall(samples, self.rounds)
        if stall_s is None:
            return self._describe_usual_load(background, samples)
        return (
            f"{self._describe_usual_load(background, samples)}; one stall of "
            f"{format_duration(stall_s)}, {FAR_LONGER:.0f} times as long as all others, may be a "
            f"server that stood still"
        )

    def _describe_usual_load(
        self, background: BackgroundLoad, samples: Sequence[CanaryRound]
    ) -> str:
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
                f"{_format_stalls(background)}; {slower}"
            )
        if not any(counted) and not has_calm_rounds(self.rounds):
            either = (
                "others' prefills or the server's own noise, no quiet time was seen yet to "
                "distinguish them"
            )
            return f"stalls: {_format_stalls(background)} ({either}); {slower}"
        theirs = estimate_background_load(samples, self.rounds, without_noise=True) or background
        text = f"others: prefill {_format_stalls(theirs)}"
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
            text += f" (noise, in {rounds} without others: {_format_stalls(alone, with_interval=False)})"
        return f"{text}; {slower}"

    def summary(self) -> str:
        """Describes all rounds."""
        head = (
            f"{format_count(len(self.rounds), 'round')}, {self.failed} without a response, in "
            f"{self._folder / FILE}"
        )
        counts = [sample.input_tokens for sample in self.rounds if sample.input_tokens is not None]
        prompts = (
            f", prompts of {median(counts):.0f} tokens by the server's count" if counts else ""
        )
        background = estimate_background_load(self.rounds, self.rounds)
        if background is None:
            return f"{head}{prompts}. No round had enough gaps to measure the load of others."
        return (
            f"{head}{prompts}.\nTTFT {format_duration(background.ttft_s)} (median); "
            f"{self.describe_others(background, self.rounds)}."
        )

    @property
    def result(self) -> CanaryResult:
        return CanaryResult(
            file=str(self._folder / FILE),
            rounds=len(self.rounds),
            failed=self.failed,
            load=estimate_background_load(self.rounds, self.rounds),
            summary=self.summary(),
        )

    def collect(self) -> Iterator[Metric]:
        counter = CounterMetricFamily(
            f"{PREFIX}rounds", "Canary streams, by outcome", labels=("outcome",)
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
            ("others_present",
                "1: the server counted requests of other clients during the last canary request",
                others),
            ("stalls_per_second", "Stalls by prefills of others or by noise", background.stalls_per_s),
            ("prompt_tokens_per_second",
                "Prompt tokens of other clients, estimated by the prefill time per token",
                tokens[0]),
            ("prompt_tokens_per_second_low", "Lower end of its 95% interval", tokens[1]),
            ("prompt_tokens_per_second_high", "Upper end of its 95% interval", tokens[2]),
            ("slower_ratio", "Usual gap over the lowest of the session, less one: decodes of others", background.slower),
            ("quiet_gap_seconds", "Usual gap without a stall", background.quiet_s),
            ("time_to_first_token_seconds", "Time to first token of the last canary stream", self.rounds[-1].ttft_s),
        ):  # fmt: skip
            if value is not None:
                yield GaugeMetricFamily(PREFIX + name, text, value)
