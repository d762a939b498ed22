"""Benchmark validity: whether a run is valid by the rules of its scenario's benchmark, a function
for each kind of rule, and the table.

Regions of concurrency are as the rules of MLPerf Endpoints bound them:
mlcommons/endpoints_policies, endpoints_rules.md at commit 00135a0, sections 5.3 to 5.6. The tests
have the worked examples of section 5.4 and the table of appendix B. They contradict each other for
16 and 1,024: the example prints 16 to 26 and 27 to 116, the table and the algorithm 17 to 26 and 27
to 117, for 16 + 1008^(2/3) is 116.5 and more. The algorithm counts.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from locust_llm.records.run_facts import Run
from locust_llm.report.document_blocks import Block, Heading, TableBlock, TextBlock
from locust_llm.report.sections.energy import Energy
from locust_llm.report.summary_rows import LoadLevel
from locust_llm.settings.sweep_option import CONCURRENCY, MIN_GAIN
from locust_llm.slo.load_generator_health import OK
from locust_llm.slo.published_rules import CONFIDENCE, PublishedRules, least_samples
from locust_llm.text.format import (
    count_distinguishing_digits,
    format_brief,
    format_count,
    format_number,
)

if TYPE_CHECKING:  # a summary contains what this file makes
    from locust_llm.report.sections.run_summary import Summary


ULTRA_LOW: Final = 32
"""The highest concurrency of the first region, in which a curve begins."""
MARGIN: Final = 1.10
"""Up to this many times the highest declared concurrency a later point is in range, but covers no
region."""


class ConcurrencyRegion(NamedTuple):
    """Both ends belong to it. There is none where ``low`` is above ``high``."""

    name: str
    low: int
    high: int

    def __contains__(self, concurrency: object) -> bool:
        return isinstance(concurrency, int) and self.low <= concurrency <= self.high

    def __str__(self) -> str:
        return f"{self.name} ({self.low:,} to {self.high:,})"


def divide_into_regions(lowest: int, highest: int) -> tuple[ConcurrencyRegion, ...]:
    """The regions between a curve's lowest and highest concurrency: Ultra Low, Low, Medium, High
    and the margin above.

    Low and Medium end at lowest + (highest - lowest)^(1/3) and ^(2/3), rounded half to even: three
    equal parts of the logarithm of what lies between. Raises ValueError of one sentence where the
    rules define none.
    """
    if not 1 <= lowest <= ULTRA_LOW:
        raise ValueError(f"the lowest concurrency must be 1 to {ULTRA_LOW}, and is {lowest:,}")
    if highest <= ULTRA_LOW:
        raise ValueError(f"the highest concurrency must be above {ULTRA_LOW}, and is {highest:,}")
    third = math.log2(highest - lowest) / 3
    low = round(lowest + 2**third)
    medium = round(lowest + 2 ** (2 * third))
    return (
        ConcurrencyRegion("Ultra Low", 1, lowest),
        ConcurrencyRegion("Low", lowest + 1, low),
        ConcurrencyRegion("Medium", low + 1, medium),
        ConcurrencyRegion("High", medium + 1, highest),
        ConcurrencyRegion("margin", highest + 1, math.ceil(round(MARGIN * highest, 6))),
    )


def find_uncovered_regions(points: Sequence[int]) -> list[ConcurrencyRegion]:
    """The regions without a point, from the lowest to the highest point. A region that rounding
    left empty has the concurrency at its boundary (section 5.4). Raises ValueError as
    ``divide_into_regions``, and without points."""
    if not points:
        raise ValueError("no point was measured")
    uncovered = []
    for region in divide_into_regions(min(points), max(points))[:-1]:
        asked = ConcurrencyRegion(region.name, min(region.low, region.high), region.high)
        if not any(point in asked for point in points):
            uncovered.append(asked)
    return uncovered


class PublishedCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One of the rules, over all points."""

    rule: str
    """loop, streaming, duration, requests, warmup, dataset, samples, client, options, points,
    levels, regions or plateau."""
    met: bool
    text: str
    """What was found. A broken rule has its requirement beside it: ``300 s, the rules ask 1,200 at
    64 users``."""
    others: int = 0
    """Further points that break the rule."""


class Validity(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a curve, or one point, is valid by published rules."""

    rules: str
    """Name and version."""
    curve: bool
    """False: it is one point, to which rules about a curve do not apply."""
    checks: tuple[PublishedCheck, ...]
    note: str = ""
    """What a run that meets them still is not."""
    unchecked: tuple[str, ...] = ()

    @property
    def broken(self) -> tuple[PublishedCheck, ...]:
        return tuple(check for check in self.checks if not check.met)

    @property
    def valid(self) -> bool:
        return not self.broken


class PublishedPoint(NamedTuple):
    """A run at one concurrency."""

    users: int
    """0: unknown, as many as an open loop needed."""
    seconds: float
    answered: int
    warmup: int
    """The requests that had ended before it was measured."""
    client: str | None
    tokens_per_s: float
    """Output tokens a second, else requests a second."""

    @property
    def place(self) -> str:
        return f" at {format_count(self.users, 'user')}" if self.users else ""


def check_validity(summary: "Summary", run: Run) -> Validity | None:
    """None: the run has no published rules, or nothing to check (a probe, two arms)."""
    rules = run.settings.published
    if rules is None or summary.examination is not None or summary.paired is not None:
        return None
    sweep = summary.sweep
    curve = sweep is not None and not sweep.repeats
    points = (
        [_of_level(level) for level in sweep.levels] if sweep is not None else [_of_run(summary)]
    )
    checks = [*_of_points(rules, points, run), *_options(rules, run)]
    if curve:
        checks += _of_curve(rules, points, run)
    return Validity(
        rules=rules.rules,
        curve=curve,
        checks=tuple(checks),
        note=rules.note,
        unchecked=rules.unchecked,
    )


def _of_level(level: LoadLevel) -> PublishedPoint:
    return PublishedPoint(
        level.users or 0,
        level.duration_s or 0.0,
        level.succeeded,
        level.warmup,
        level.client,
        level.output_tokens_per_s or level.requests_per_s or 0.0,
    )


def _of_run(summary: "Summary") -> PublishedPoint:
    conditions = summary.conditions
    return PublishedPoint(
        conditions.users or 0,
        conditions.duration_s or 0.0,
        conditions.succeeded,
        summary.counts.warmup,
        conditions.client_verdict,
        0.0,
    )


def _of_points(
    rules: PublishedRules, points: Sequence[PublishedPoint], run: Run
) -> Iterator[PublishedCheck]:
    """Check the rules for each point."""
    settings = run.settings
    if rules.loop:
        here = "open" if settings.open_loop else "closed"
        what = (
            "a fixed number of requests in flight"
            if rules.loop == "closed"
            else "a schedule of arrivals"
        )
        yield _check("loop", here == rules.loop, f"{here} loop", f"{what}")
    if rules.streaming:
        yield _check(
            "streaming",
            settings.streaming,
            "streamed" if settings.streaming else "not streamed",
            "streams",
        )
    if rules.seconds:
        yield _each(
            "duration",
            points,
            lambda p: p.seconds,
            lambda p: rules.least_seconds(p.users or 1),
            "{} s",
        )
    if rules.requests or rules.requests_per_user:
        yield _each(
            "requests", points, lambda p: p.answered,
            lambda p: max(rules.requests or 0, (rules.requests_per_user or 0) * p.users),
            "{} answered requests",
        )  # fmt: skip
    if (per_user := rules.warmup_per_user) is not None:
        yield _each(
            "warmup",
            points,
            lambda p: p.warmup,
            lambda p: per_user * p.users,
            "{} requests of warmup",
        )
    if rules.dataset_pass:
        yield _dataset(points, run)
    for percentile in rules.percentiles:
        least = least_samples(percentile)
        unit = f"{{}} requests for p{percentile:g} at {CONFIDENCE:.0%} confidence"
        yield _each("samples", points, lambda p: p.answered, lambda _, least=least: least, unit)  # type: ignore[misc]
    if rules.client_ok:
        bad = [p for p in points if p.client not in (None, OK)]
        evidence = (
            f"client verdict {bad[0].client}{bad[0].place}" if bad else f"client verdict {OK}"
        )
        yield PublishedCheck(rule="client", met=not bad, text=evidence, others=max(0, len(bad) - 1))


def _each(
    rule: str,
    points: Sequence[PublishedPoint],
    value_of: Callable[[PublishedPoint], float],
    asked: Callable[[PublishedPoint], float | None],
    unit: str,
) -> PublishedCheck:
    """Check each point. The one that falls furthest short is named."""
    short = [p for p in points if value_of(p) < (asked(p) or 0.0)]
    if not points:
        return PublishedCheck(rule=rule, met=False, text="no point was measured")
    if short:
        worst = min(short, key=lambda p: value_of(p) / (asked(p) or 1.0))
        least = asked(worst) or 0.0
        short_by_little = _figure(value_of(worst)) == _figure(least)
        value = (
            format_brief(
                value_of(worst), digits=count_distinguishing_digits(value_of(worst), least)
            )
            if short_by_little
            else _figure(value_of(worst))
        )
        text = f"{unit.format(value)}, the rules require {_figure(least)}{worst.place}"
        return PublishedCheck(rule=rule, met=False, text=text, others=len(short) - 1)
    ends = [_figure(end) for end in (min(map(value_of, points)), max(map(value_of, points)))]
    span = " to ".join(dict.fromkeys(ends))
    return PublishedCheck(rule=rule, met=True, text=unit.format(span))


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else format_number(value, 3)


def _check(rule: str, met: bool, evidence: str, asked: str) -> PublishedCheck:
    return PublishedCheck(
        rule=rule, met=met, text=evidence if met else f"{evidence}, the rules require {asked}"
    )


def _dataset(points: Sequence[PublishedPoint], run: Run) -> PublishedCheck:
    sessions = run.dataset_sessions
    if not run.settings.input_file:
        return _check(
            "dataset", False, "synthetic prompts", "the benchmark's dataset (--input-file)"
        )
    if sessions is None:
        return _check("dataset", False, "a dataset of unknown size", "one pass over it")
    return _each(
        "dataset",
        points,
        lambda p: p.answered,
        lambda _: sessions,
        f"{{}} requests of a dataset of {sessions:,}",
    )


def _options(rules: PublishedRules, run: Run) -> Iterator[PublishedCheck]:
    """Check the options that the scenario fixes, and this run changes."""
    changed = [key for key in run.settings.scenario_changed if key not in rules.free]
    if changed:
        yield _check(
            "options", False, f"other values of {', '.join(changed)}", "the scenario's values"
        )


def _of_curve(
    rules: PublishedRules, points: Sequence[PublishedPoint], run: Run
) -> Iterator[PublishedCheck]:
    """Check the rules for all points together."""
    users = [p.users for p in points]
    by_users = run.settings.sweeps(CONCURRENCY)
    if rules.loop == "closed" and not by_users:
        yield _check(
            "points", False, f"a sweep of {run.settings.sweep}", "points of rising concurrency"
        )
        return
    if rules.points is not None:
        least, most = rules.points
        asked = f"{least} to {most}" if least <= len(points) else f"at least {least}"
        yield _check(
            "points", least <= len(points) <= most, format_count(len(points), "point"), asked
        )
    if rules.levels:
        left_out = [
            level for level in rules.levels if level <= max(users, default=0) and level not in users
        ]
        listed = ", ".join(f"{level:,}" for level in left_out)
        evidence = (
            f"no point at {listed}"
            if left_out
            else f"a point at each of its levels up to {max(users, default=0):,}"
        )
        yield _check("levels", not left_out, evidence, "one")
    if rules.regions:
        yield _regions(users)
    if rules.until_flat:
        yield _check(
            "plateau",
            _is_flat([point.tokens_per_s for point in points]),
            f"throughput still rose by {MIN_GAIN:.0%} or more at one of the last two points",
            "to continue until throughput is flat",
        )


def _is_flat(tokens_per_s: Sequence[float]) -> bool:
    """Whether throughput rose by less than MIN_GAIN at the last two points, one after the other."""
    best = max(tokens_per_s[:-2], default=0.0)
    return best > 0 and all(rate < best * (1 + MIN_GAIN) for rate in tokens_per_s[-2:])


def _regions(users: Sequence[int]) -> PublishedCheck:
    try:
        missing = find_uncovered_regions(users)
    except ValueError as error:
        return PublishedCheck(rule="regions", met=False, text=str(error))
    if missing:
        return _check(
            "regions", False, f"no point in {' and '.join(map(str, missing))}", "one in each region"
        )
    return PublishedCheck(
        rule="regions", met=True, text="a point in each of Ultra Low, Low, Medium and High"
    )


PUBLISHED: Final = "Published rules"


def format_broken_rules(validity: Validity | None) -> str | None:
    """``not valid by MLPerf Endpoints v1.0 draft: 300 s, the rules ask 1,200 at 64 users (and 2
    more rules)``. None: the run is valid, or there are no such rules."""
    if validity is None or validity.valid:
        return None
    first, *others = validity.broken
    more = f" (and {format_count(len(others), 'more rule')})" if others else ""
    return f"not valid by {validity.rules}: {first.text}{more}"


def make_validity_table(validity: Validity) -> Iterator[Block]:
    """Each rule and what was found."""
    what = "curve" if validity.curve else "point"
    yield Heading(PUBLISHED)
    if (line := format_broken_rules(validity)) is not None:
        yield TextBlock(f"{line.replace('not valid', 'NOT VALID', 1)}.", loud=True)
    else:
        yield TextBlock(
            f"Valid as a {what} by the rules of {validity.rules} that locust-llm checks."
        )
    if validity.note:
        yield TextBlock(validity.note)
    if rows := tuple(map(_cells, validity.checks)):
        yield TableBlock(("Rule", "Found", "Result"), rows, numbers=False)
    if not validity.curve:
        yield TextBlock("A single load: rules about a whole curve are checked for a sweep only.")
    if validity.unchecked:
        yield TextBlock(f"Not checked here: {'; '.join(validity.unchecked)}.")
    yield TextBlock(
        "Published rules decide whether a result is comparable with published ones. They do not "
        "change the SLO verdict."
    )


def _cells(check: PublishedCheck) -> tuple[str, ...]:
    others = f"; {format_count(check.others, 'more point')} too" if check.others else ""
    return check.rule, f"{check.text}{others}", "met" if check.met else "not met"


def format_energy(energy: Energy) -> str:
    """``3.21 J per output token; 4,120 W on average over 8 GPUs``"""
    each = (
        ""
        if energy.joules_per_output_token is None
        else f"{energy.joules_per_output_token:.3g} J per output token; "
    )
    gpus = "1 GPU" if energy.gpus == 1 else f"{energy.gpus} GPUs"
    return f"{each}{energy.watts:,.0f} W on average over {gpus}"
