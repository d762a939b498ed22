"""Check: a run against the published rules of its scenario, a function for each kind of rule."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from locust_llm.records.run import Run
from locust_llm.report.rows import LoadLevel
from locust_llm.report.sections.published.model import PublishedCheck, Validity
from locust_llm.report.summary import Summary
from locust_llm.settings.sweep import CONCURRENCY, FLAT
from locust_llm.slo.client_verdict import OK
from locust_llm.slo.published import CONFIDENCE, PublishedRules, least_samples
from locust_llm.text.format import digits_to_tell_apart, format_brief, format_count, format_number

from .regions import find_uncovered_regions


class PublishedPoint(NamedTuple):
    """A run at one concurrency."""

    users: int
    """0: unknown, as many as an open loop needed."""
    seconds: float
    answered: int
    warmup: int
    """Requests that had ended before it was measured."""
    client: str | None

    @property
    def place(self) -> str:
        return f" at {format_count(self.users, 'user')}" if self.users else ""


def check_validity(summary: Summary, run: Run) -> Validity | None:
    """None: the run has no published rules, or nothing to hold against them (a probe, two arms)."""
    rules = run.settings.published
    if rules is None or summary.examination is not None or summary.paired is not None:
        return None
    sweep = summary.sweep
    curve = sweep is not None and not sweep.repeats
    points = [_of_level(level) for level in sweep.levels] if sweep is not None else [_of_run(summary)]
    checks = [*_of_points(rules, points, run), *_options(rules, run)]
    if curve:
        checks += _of_curve(rules, points, run)
    return Validity(rules=rules.rules, curve=curve, checks=tuple(checks), note=rules.note, unchecked=rules.unchecked)


def _of_level(level: LoadLevel) -> PublishedPoint:
    return PublishedPoint(level.users or 0, level.duration_s or 0.0, level.succeeded, level.warmup, level.client)


def _of_run(summary: Summary) -> PublishedPoint:
    c = summary.conditions
    return PublishedPoint(c.users or 0, c.duration_s or 0.0, c.succeeded, summary.counts.warmup, c.client_verdict)


def _of_points(rules: PublishedRules, points: Sequence[PublishedPoint], run: Run) -> Iterator[PublishedCheck]:
    """Rules that each point has to keep."""
    s = run.settings
    if rules.loop:
        here = "open" if s.open_loop else "closed"
        what = "a fixed number of requests in flight" if rules.loop == "closed" else "a schedule of arrivals"
        yield _check("loop", here == rules.loop, f"{here} loop", f"{what}")
    if rules.streaming:
        yield _check("streaming", s.streaming, "streamed" if s.streaming else "not streamed", "streams")
    if rules.seconds:
        yield _each("duration", points, lambda p: p.seconds, lambda p: rules.least_seconds(p.users or 1), "{} s")
    if rules.requests or rules.requests_per_user:
        yield _each(
            "requests", points, lambda p: p.answered,
            lambda p: max(rules.requests or 0, (rules.requests_per_user or 0) * p.users), "{} answered requests",
        )  # fmt: skip
    if (per_user := rules.warmup_per_user) is not None:
        yield _each("warmup", points, lambda p: p.warmup, lambda p: per_user * p.users, "{} requests of warmup")
    if rules.dataset_pass:
        yield _dataset(points, run)
    for percentile in rules.percentiles:
        least = least_samples(percentile)
        unit = f"{{}} requests for p{percentile:g} at {CONFIDENCE:.0%} confidence"
        yield _each("samples", points, lambda p: p.answered, lambda _, least=least: least, unit)  # type: ignore[misc]
    if rules.client_ok:
        bad = [p for p in points if p.client not in (None, OK)]
        found = f"client verdict {bad[0].client}{bad[0].place}" if bad else f"client verdict {OK}"
        yield PublishedCheck(rule="client", met=not bad, text=found, others=max(0, len(bad) - 1))


def _each(
    rule: str,
    points: Sequence[PublishedPoint],
    found: Callable[[PublishedPoint], float],
    asked: Callable[[PublishedPoint], float | None],
    unit: str,
) -> PublishedCheck:
    """Each point against what is asked of it; the one that falls furthest short is told."""
    short = [p for p in points if found(p) < (asked(p) or 0.0)]
    if not points:
        return PublishedCheck(rule=rule, met=False, text="no point was measured")
    if short:
        worst = min(short, key=lambda p: found(p) / (asked(p) or 1.0))
        least = asked(worst) or 0.0
        short_by_little = _figure(found(worst)) == _figure(least)
        value = (
            format_brief(found(worst), digits=digits_to_tell_apart(found(worst), least))
            if short_by_little
            else _figure(found(worst))
        )
        text = f"{unit.format(value)}, the rules ask {_figure(least)}{worst.place}"
        return PublishedCheck(rule=rule, met=False, text=text, others=len(short) - 1)
    ends = [_figure(end) for end in (min(map(found, points)), max(map(found, points)))]
    span = " to ".join(dict.fromkeys(ends))
    return PublishedCheck(rule=rule, met=True, text=unit.format(span))


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else format_number(value, 3)


def _check(rule: str, met: bool, found: str, asked: str) -> PublishedCheck:
    return PublishedCheck(rule=rule, met=met, text=found if met else f"{found}, the rules ask {asked}")


def _dataset(points: Sequence[PublishedPoint], run: Run) -> PublishedCheck:
    sessions = run.dataset_sessions
    if not run.settings.input_file:
        return _check("dataset", False, "synthetic prompts", "the benchmark's dataset (--input-file)")
    if sessions is None:
        return _check("dataset", False, "a dataset of unknown size", "one pass of it")
    return _each(
        "dataset", points, lambda p: p.answered, lambda _: sessions, f"{{}} requests of a dataset of {sessions:,}"
    )


def _options(rules: PublishedRules, run: Run) -> Iterator[PublishedCheck]:
    """What the scenario fixes, and this run has otherwise."""
    changed = [key for key in run.settings.scenario_changed if key not in rules.free]
    if changed:
        yield _check("options", False, f"other values of {', '.join(changed)}", "those of the scenario")


def _of_curve(rules: PublishedRules, points: Sequence[PublishedPoint], run: Run) -> Iterator[PublishedCheck]:
    """Rules about all points together."""
    users = [p.users for p in points]
    by_users = run.settings.sweeps(CONCURRENCY)
    if rules.loop == "closed" and not by_users:
        yield _check("points", False, f"a sweep of {run.settings.sweep}", "points of rising concurrency")
        return
    if rules.points is not None:
        least, most = rules.points
        asked = f"{least} to {most}" if least <= len(points) else f"at least {least}"
        yield _check("points", least <= len(points) <= most, format_count(len(points), "point"), asked)
    if rules.levels:
        left_out = [level for level in rules.levels if level <= max(users, default=0) and level not in users]
        listed = ", ".join(f"{level:,}" for level in left_out)
        found = (
            f"no point at {listed}" if left_out else f"a point at each of its levels up to {max(users, default=0):,}"
        )
        yield _check("levels", not left_out, found, "one")
    if rules.regions:
        yield _regions(users)
    if rules.until_flat:
        flat = FLAT in run.sweep_end
        yield _check(
            "plateau", flat, f"ended: {run.sweep_end or 'nobody knows why'}", "to go on until throughput is flat"
        )


def _regions(users: Sequence[int]) -> PublishedCheck:
    try:
        missing = find_uncovered_regions(users)
    except ValueError as error:
        return PublishedCheck(rule="regions", met=False, text=str(error))
    if missing:
        return _check("regions", False, f"no point in {' and '.join(map(str, missing))}", "one in each region")
    return PublishedCheck(rule="regions", met=True, text="a point in each of Ultra Low, Low, Medium and High")
