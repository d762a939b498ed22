"""Knee: where a sweep saturates, by named rules, each with its figures. The knee of the SLO uses
what the rules decided of each stage; no other uses a stage that the load generator distorted."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from locust_llm.report.array_types import Floats
from locust_llm.report.measurement_window import MIN_ANSWERED_SHARE
from locust_llm.report.slo_evidence.observed_rule_values import TOO_FEW
from locust_llm.report.summary_rows import Knee, LoadLevel, SweepSummary
from locust_llm.settings.sweep_option import AXES, CONCURRENCY, MIN_GAIN, PREFILL, RATE, REPEAT
from locust_llm.slo.binomial_intervals import NORMAL_REACH
from locust_llm.slo.capacity_search import CapacityEstimate, format_load
from locust_llm.slo.load_generator_health import LEVELS, OK, find_named_causes
from locust_llm.slo.rules import FAIL, INCONCLUSIVE, PASS
from locust_llm.text.format import (
    add_noun,
    capitalise_sentence,
    format_brief,
    format_count,
    format_plain_number,
    format_supported,
)

from .usl import fit_scalability_law, kappa_interval

SLO: Final = "SLO"
NO_RULES: Final = "No SLO is given (--slo)."
ASYMPTOTIC: Final = "asymptotic"
USL: Final = "USL"
SATURATION: Final = "saturation"
BEST: Final = "best limit"

UNMEASURED: Final = "of which no request was measured"
"""Follows the name of a stage."""
MIN_COMPARED: Final = 2
"""The valid stages, or limits, among which one can be the best."""
MIN_STAGES: Final = 5
"""The stages that a fit of the Universal Scalability Law requires."""
MIN_R2: Final = 0.95
"""Below this R2 the law does not describe the measurements."""
MIN_ERRORS: Final = 3.0
"""A difference of so many standard errors is more than chance, where the best of several stages was
picked."""
MIN_FALL: Final = 0.02
"""A smaller share of throughput is no fall."""


def find_knees(
    axis: str,
    levels: Sequence[LoadLevel],
    capacity: CapacityEstimate | None = None,
    run_time_s: float | None = None,
) -> tuple[Knee, ...]:
    """A knee for each rule of this axis. Repeats have none. ``levels`` are in rising order of their
    values.

    ``capacity`` is of a search, and then the knee of the SLO. ``run_time_s`` is the search's time.
    """
    knees = _find_knees(axis, levels)
    if capacity is None:
        return knees
    own = describe_capacity(axis, capacity, run_time_s, list_dead_stages(levels))
    return tuple(own if knee.rule == SLO else knee for knee in knees)


def describe_capacity(
    axis: str,
    capacity: CapacityEstimate,
    run_time_s: float | None = None,
    dead: Sequence[LoadLevel] = (),
) -> Knee:
    """``Capacity: 3 users (95% interval 3 to 4).`` and what follows from it. ``dead``: the stages in
    which the server died."""
    unit, lowest, highest = AXES[axis], capacity.levels[0], capacity.levels[-1]
    value, low, high = capacity.value, capacity.low, capacity.high
    rule = f" The rule {capacity.rule} determines it."
    if value is None:
        text = f"Capacity: below {format_load(lowest, unit)}, the lowest requested"
        sure = "" if high is None else f" (95% interval: at most {format_load(high)})"
        text = f"{text}{sure}.{rule}{_describe_contradiction(axis, capacity)}"
        return Knee(rule=SLO, value=None, high=lowest, text=text)
    above = _describe_unmeasured(axis, capacity, run_time_s)
    if dead:
        above = f"the server died at {describe_levels(axis, dead[0])}"
    if low is not None and capacity.is_open:
        text = f"Capacity: at least {format_load(low, unit)}; {above}."
        text += _describe_contradiction(axis, capacity)
        return Knee(rule=SLO, value=value, low=low, text=text)
    assert high is not None
    to = f"{format_load(high)}{' or more' * capacity.reaches_top}"
    interval = f"95% interval: at most {to}"
    if low is not None:
        interval = f"95% interval {format_load(low)} to {to}"
        if format_load(low) == to:
            interval = "no other level is in the 95% interval"
    parts = [f"Capacity: {format_load(value, unit)} ({interval})."]
    if capacity.safe is not None:
        parts.append(f"Safe: {format_load(capacity.safe, unit)}.")
    parts.append(rule.strip())
    if capacity.reaches_top and capacity.measured_to < highest:
        if capacity.probably_fails is not None:
            load = format_load(capacity.probably_fails, unit)
            above = f"at {load} the SLO probably fails: use a longer -t"
        parts.append(f"{capitalise_sentence(above)}.")
    if (ends := capacity.predict_interval(2)) is not None and ends != (low, high):
        least, most = map(format_load, ends)
        parts.append(f"Twice the time narrows the interval to about {least} to {most}.")
    text = " ".join(parts) + _describe_contradiction(axis, capacity)
    return Knee(rule=SLO, value=value, low=low, high=high, text=text)


def _describe_contradiction(axis: str, capacity: CapacityEstimate) -> str:
    """A sentence about stages that contradict each other. Empty: none do."""
    if capacity.contradiction is None:
        return ""
    broken, held = (format_load(level, AXES[axis]) for level in capacity.contradiction)
    if broken == held:
        return f" Stages contradict each other: at {held}, one passes the SLOs and one fails them."
    return f" Stages contradict each other: one at {broken} fails the SLOs, one at {held} passes."


def _describe_unmeasured(axis: str, capacity: CapacityEstimate, run_time_s: float | None) -> str:
    """Why nothing is claimed of higher loads."""
    if capacity.measured_to >= capacity.levels[-1]:
        return "no higher load was requested"
    what = "rate" if axis == RATE else "load"
    if run_time_s is None:
        return f"no higher {what} was decided"
    return (
        f"no higher {what} was decided in {run_time_s:g} s: use a longer -t, or a sweep that "
        "starts higher"
    )


def _find_knees(axis: str, levels: Sequence[LoadLevel]) -> tuple[Knee, ...]:
    rules: dict[str, Callable[[str, Sequence[LoadLevel]], Knee]] = (
        {} if axis == REPEAT else {SLO: find_slo_knee}
    )
    if axis == CONCURRENCY:
        rules |= {ASYMPTOTIC: find_asymptotic_knee, USL: find_scalability_knee}
    elif axis == RATE:
        rules |= {SATURATION: find_saturation_knee}
    elif axis == PREFILL:
        rules |= {BEST: find_best_limit}
    if not any(level.sound for level in levels):
        why = explain_unused(axis, levels[0]) if levels else "there are none"
        text = f"INCONCLUSIVE: no stage is valid; {why}."
        return tuple(
            find_slo_knee(axis, levels)
            if rule == SLO and (_decided(levels) or _is_time_missing(levels))
            else Knee(rule=rule, value=None, text=text)
            for rule in rules
        )
    used = {level.value for level in levels if level.sound}
    without = [level for level in levels if level.value not in used]
    left_out = f" Left out: {_describe_left_out(axis, without)}." if without else ""
    knees = {name: rule(axis, levels) for name, rule in rules.items()}
    return tuple(
        knee if name == SLO else replace(knee, text=knee.text + left_out)
        for name, knee in knees.items()
    )


def _describe_left_out(axis: str, levels: Sequence[LoadLevel]) -> str:
    """``concurrency 1; concurrency 2, where no token came from 9.7 to 15.7 s``"""
    by_reason = dict[str, list[LoadLevel]]()
    for level in levels:
        by_reason.setdefault(level.silence, []).append(level)
    parts = list[str]()
    for silence, of_reason in by_reason.items():
        where = f", where {silence}" if silence else ""
        parts.append(f"{describe_levels(axis, *of_reason)}{where}")
    return "; ".join(parts)


def _decided(levels: Sequence[LoadLevel]) -> bool:
    """The rules are decided at some stage, whatever the load generator did: its error cannot reach
    their limits."""
    return any(level.slo_status in (PASS, FAIL) and level.succeeded for level in levels)


def _is_time_missing(levels: Sequence[LoadLevel]) -> bool:
    """More requests may decide the rules of some stage: the load generator is not the cause."""
    return any(_is_too_short(level) for level in levels if level.succeeded)


def _is_too_short(level: LoadLevel) -> bool:
    open_ = [result for result in level.slos if result.status == INCONCLUSIVE]
    return any(
        result.longer_s is not None
        or result.status_without_silence
        or result.reason.startswith(TOO_FEW)
        for result in open_
    ) and not any(result.voided for result in open_)


def _is_blamed(level: LoadLevel) -> bool:
    """The load generator is why a rule of this stage is open."""
    return is_client_distorted(level) and not _is_too_short(level)


def select_top_knees(sweep: SweepSummary) -> list[Knee]:
    """The knees of the rules first, where there are any, also if they found none. Then the other
    knees that were found."""
    ruled = is_ruled(sweep)
    return sorted(
        sweep.knees, key=lambda knee: (not (ruled and knee.rule == SLO), knee.value is None)
    )


def is_ruled(sweep: SweepSummary) -> bool:
    """Whether a rule was judged in a stage."""
    return any(level.slo_status for level in sweep.levels)


def describe_levels(axis: str, *levels: LoadLevel) -> str:
    """``concurrency 16``, ``concurrency 1 and 2``."""
    values = list(dict.fromkeys(format_plain_number(level.value) for level in levels))
    return f"{axis} {' and '.join(filter(None, [', '.join(values[:-1]), values[-1]]))}"


def find_stages_below_ok(sweep: SweepSummary) -> list[LoadLevel]:
    """The stages with answers whose client verdict is below OK."""
    return [level for level in sweep.levels if level.succeeded and level.client not in (None, OK)]


def describe_client_verdicts(sweep: SweepSummary) -> str:
    """``DEGRADED at request-rate 20 (late sends)``, the worst first. Empty: it is OK in each stage
    with answers."""
    parts = list[str]()
    for verdict in reversed(LEVELS[1:]):
        levels = [level for level in find_stages_below_ok(sweep) if level.client == verdict]
        if levels:
            reasons = chain.from_iterable(level.client_reasons for level in levels)
            causes = ", ".join(find_named_causes(reasons))
            why = f" ({causes})" if causes else ""
            parts.append(f"{verdict} at {describe_levels(sweep.axis, *levels)}{why}")
    return ", ".join(parts)


def describe_repeat_verdicts(sweep: SweepSummary | None, whole: str) -> str:
    """``OK over all repeats, DEGRADED at repeat 2 (late sends)``: what was merged in a repeat may have
    another cause over all of them. Empty: no repeat is worse than OK, or the stages are no
    repeats."""
    if sweep is None or not sweep.repeats:
        return ""
    verdicts = describe_client_verdicts(sweep)
    return f"{whole} over all repeats, {verdicts}" if verdicts else ""


def is_client_distorted(level: LoadLevel) -> bool:
    """The load generator may have the basis of conclusions, or of the stage's rules, wrong."""
    return level.distorted or any(result.voided for result in level.slos)


def explain_unused(axis: str, level: LoadLevel) -> str:
    """Why conclusions do not use a stage: a silence of the server, or the load generator."""
    if level.silence:
        return f"at {describe_levels(axis, level)} {level.silence}"
    return explain_unsound(axis, level)


def explain_unsound(axis: str, level: LoadLevel) -> str:
    """Why conclusions do not use a stage, or which of its figures may be off."""
    if not is_client_distorted(level) and (not level.succeeded or level.client in (None, OK)):
        return f"at {describe_levels(axis, level)} no request succeeded"
    voided = [result.rule for result in level.slos if result.voided]
    if voided and not level.distorted:
        return (
            f"at {describe_levels(axis, level)} the error of the load generator reaches the limit "
            f"of {', '.join(voided)}"
        )
    reasons = f" ({'; '.join(level.client_reasons)})" if level.client_reasons else ""
    return f"at {describe_levels(axis, level)} the client verdict is {level.client}{reasons}"


# -- within the SLO --------------------------------------------------------------------------------


class PassingStages(NamedTuple):
    """The stages by whether they hold a rule."""

    highest: LoadLevel | None
    """The last stage that holds it below the first that breaks it. None: none holds it. Rules on
    throughput need some load, so no limit lies below the first stage that holds it."""
    beyond: LoadLevel | None
    """The next stage, which breaks the rule or is not decided. None: the highest stage holds it."""
    broken: LoadLevel | None = None
    """The first stage that breaks it above the ones that hold it, or of all where none does."""
    again: tuple[LoadLevel, ...] = ()
    """Later stages that hold it nevertheless."""
    before: tuple[LoadLevel, ...] = ()
    """Stages below the first that holds it, which break it."""
    died: tuple[LoadLevel, ...] = ()
    """Stages above it in which the server died, in the order of time."""
    undecided: tuple[LoadLevel, ...] = ()
    """Undecided stages up to the first that breaks it, without ``beyond``."""


def find_passing_stages(
    levels: Sequence[LoadLevel],
    status_of: Callable[[LoadLevel], str | None],
    *,
    distorted_too: bool = False,
) -> PassingStages:
    """``status_of`` gives PASS, FAIL, INCONCLUSIVE, or None for a stage that the rule does not
    cover.

    An undecided stage below one that holds the rule decides nothing. Neither does one that the load
    generator distorted, except with ``distorted_too``.
    """

    def decided(level: LoadLevel) -> bool | None:
        status = status_of(level)
        if status == PASS and (level.sound or (distorted_too and level.succeeded)):
            return True
        if status == FAIL and (distorted_too or not is_client_distorted(level)):
            return False
        return None

    judged = [(level, decided(level)) for level in levels if status_of(level) is not None]
    first = next((i for i, (_, holds) in enumerate(judged) if holds), None)
    if first is None:
        broken = next((level for level, holds in judged if holds is False), None)
        return PassingStages(
            None,
            None,
            broken,
            died=list_dead_stages(levels),
            undecided=tuple(level for level, holds in judged if holds is None),
        )
    end = next((i for i in range(first, len(judged)) if judged[i][1] is False), len(judged))
    last = max(i for i in range(first, end) if judged[i][1])
    beyond = judged[last + 1][0] if last + 1 < len(judged) else None
    return PassingStages(
        judged[last][0],
        beyond,
        judged[end][0] if end < len(judged) else None,
        tuple(level for level, holds in judged[end:] if holds),
        tuple(level for level, holds in judged[:first] if holds is False),
        list_dead_stages(levels, above=judged[last][0].value),
        tuple(level for level, holds in judged[:end] if holds is None and level is not beyond),
    )


def list_dead_stages(
    levels: Sequence[LoadLevel], above: float = -math.inf
) -> tuple[LoadLevel, ...]:
    """The stages with a higher value to whose end nothing answered, in the order of time."""
    dead = [level for level in levels if level.died and level.value > above]
    return tuple(sorted(dead, key=lambda level: level.number))


def describe_neighbours(
    axis: str, passing: PassingStages, status_of: Callable[[LoadLevel], str | None]
) -> str:
    """The stages above and below the highest one that holds a rule."""
    notes = []
    if (beyond := passing.beyond) is None:
        notes.append("" if passing.died else "no higher stage was run")
    elif _is_blamed(beyond) and status_of(beyond) not in (PASS, FAIL):
        notes.append(
            f"at {format_plain_number(beyond.value)} the load generator was too slow: the true "
            "maximum may be higher"
        )
    elif status_of(beyond) == FAIL:
        notes.append(f"broken at {format_plain_number(beyond.value)}")
    else:
        notes.append(
            f"INCONCLUSIVE at {format_plain_number(beyond.value)}, so the true maximum may be "
            "higher"
        )
    if passing.died:
        notes.append(f"the server died at {format_plain_number(passing.died[0].value)}")
    if passing.broken is not None and passing.broken is not beyond:
        notes.append(f"broken at {format_plain_number(passing.broken.value)}")
    notes += _open(axis, passing.undecided, status_of, " too")
    if passing.before:
        notes.append(f"broken at {describe_levels(axis, *passing.before)} below")
    if passing.again:
        notes.append(
            f"passed again at {describe_levels(axis, *passing.again)} above: longer stages may "
            "decide"
        )
    return "; ".join(filter(None, notes))


def _open(
    axis: str,
    undecided: Sequence[LoadLevel],
    status_of: Callable[[LoadLevel], str | None],
    too: str = "",
) -> Iterator[str]:
    """The stages that decide nothing: with open rules, or with results that do not count."""
    unused = [level for level in undecided if status_of(level) in (PASS, FAIL)]
    if still_open := [level for level in undecided if level not in unused]:
        yield f"INCONCLUSIVE at {describe_levels(axis, *still_open)}{too}"
    if distorted := [level for level in unused if is_client_distorted(level)]:
        yield f"at {describe_levels(axis, *distorted)} the load generator was too slow"
    others = [level for level in unused if not is_client_distorted(level)]
    if dead := [level for level in others if not level.silence]:
        yield f"at {describe_levels(axis, *dead)} no request succeeded"
    for level in others:
        if level.silence:
            yield explain_unused(axis, level)


def find_slo_knee(axis: str, levels: Sequence[LoadLevel]) -> Knee:
    """The highest stage that passes all its rules, between it and the next."""

    def status_of(level: LoadLevel) -> str | None:
        return level.slo_status

    if not any(status_of(level) for level in levels):
        if dead := list_dead_stages(levels):
            text = (
                f"INCONCLUSIVE: the server died at {describe_levels(axis, dead[0])}, and no stage "
                f"was judged; {explain_unused(axis, dead[0])}."
            )
            return Knee(rule=SLO, value=None, text=text)
        return Knee(rule=SLO, value=None, text=NO_RULES)
    passing = find_passing_stages(
        levels, status_of, distorted_too=True
    )  # a rule that the error of the client can turn is INCONCLUSIVE there
    if passing.highest is not None:
        value = passing.highest.value
        high = None if passing.broken is None else passing.broken.value
        text = (
            f"Within the SLO up to {describe_levels(axis, passing.highest)}; "
            f"{describe_neighbours(axis, passing, status_of)}."
        )
        return Knee(
            rule=SLO, value=value, low=value, high=high, text=text + _because(passing.beyond)
        )
    lowest = next(level for level in levels if status_of(level))
    if status_of(lowest) == FAIL:
        text = (
            f"No stage is within the SLO: it fails at {describe_levels(axis, lowest)}, the "
            f"lowest.{_because(lowest)}"
        )
        return Knee(rule=SLO, value=None, high=lowest.value, text=text)
    notes = list(_open(axis, passing.undecided, status_of))
    notes += (
        [] if passing.broken is None else [f"broken at {format_plain_number(passing.broken.value)}"]
    )
    also = ", and longer stages may decide it" * _is_time_missing(levels)
    if passing.died:
        also = f", and the server died at {describe_levels(axis, passing.died[0])}"
    text = (
        f"INCONCLUSIVE: no stage is known to be within the SLO{also}; "
        f"{'; '.join(notes)}.{_because(lowest)}"
    )
    return Knee(
        rule=SLO,
        value=None,
        high=None if passing.broken is None else passing.broken.value,
        text=text,
    )


def _because(level: LoadLevel | None) -> str:
    """The rules that a stage does not pass."""
    if level is None or (_is_blamed(level) and level.slo_status not in (PASS, FAIL)):
        return ""
    broken = [r for r in level.slos if r.decides and r.status != PASS]
    return "".join(
        f" {r.rule}: {r.status} at "
        f"{format_plain_number(level.value)}{f', {r.reason}' * bool(r.reason)}."
        for r in broken
    )


# -- operational laws and fits ---------------------------------------------------------------------


def find_asymptotic_knee(axis: str, levels: Sequence[LoadLevel]) -> Knee:
    """N* = Xmax R1: where the two bounds of a closed loop meet, X <= N / R1 of a server that is
    never waited for and X <= Xmax of one that is always busy (Denning and Buzen, The Operational
    Analysis of Queueing Network Models, Computing Surveys 10, 1978; Lazowska et al., Quantitative
    System Performance, 1984, section 5.2)."""
    known = _measured(levels)
    if (different := _count_different(known)) < MIN_COMPARED:
        return Knee(rule=ASYMPTOTIC, value=None, text=_too_few("A knee", different, of="level"))
    latency = known[0][0].latencies.get("request_latency")
    if latency is None or latency.avg is None:
        return Knee(rule=ASYMPTOTIC, value=None, text="No request latency is known.")
    lowest, least = known[0]
    best, most = max(known, key=lambda pair: pair[1])
    if most <= least * (1 + MIN_GAIN):
        text = (
            f"No valid stage has {MIN_GAIN:.0%} more throughput than {describe_levels(axis, lowest)}, "
            "the lowest of them, so the measured range has no knee."
        )
        return Knee(rule=ASYMPTOTIC, value=None, text=text)
    alone_s = latency.avg / 1e3
    rate_error = best.requests_per_s_error
    error_s = (
        latency.std / 1e3 / math.sqrt(latency.count)
        if latency.std is not None and latency.count
        else None
    )
    value = most * alone_s
    reach = None
    if rate_error is not None and error_s is not None and alone_s:
        reach = NORMAL_REACH * value * math.hypot(rate_error / most, error_s / alone_s)
    rising = _rising(known)
    doubt = "throughput still rose at the highest stage" if rising else ""
    unused = [level for level in levels if not level.sound and (level.requests_per_s or 0.0) > most]
    if unused and not rising:
        doubt = f"throughput was higher at {describe_levels(axis, *unused)}, but may be off"
    in_flight = f"{add_noun(_fitted(value, reach), 'request')} in flight"
    claim = f"below {in_flight} the server has spare capacity, above it requests wait"
    if doubt:
        claim = f"{doubt}, so the knee may be higher than {in_flight}"
    notes = [
        f"{claim}: {_known(most, rate_error)} requests/s{'' if doubt else ', the highest'} (at "
        f"{describe_levels(axis, best)}), x {_known(alone_s, error_s)} s per request at "
        f"{describe_levels(axis, lowest)}"
    ]
    if lowest.value > 1:
        notes.append(
            f"the lowest stage has {format_plain_number(lowest.value)} users instead of 1, so its "
            "latency may include waiting, and the knee may be lower"
        )
    return Knee(
        rule=ASYMPTOTIC,
        value=None if rising else value,
        low=value if doubt else None,
        reach=reach,
        text=f"{'. '.join(map(_sentence, notes))}.",
    )


def limit_to_slots(axis: str, knees: Sequence[Knee], slots: int | None) -> tuple[Knee, ...]:
    """The knees, of which the asymptotic one is at most the slots of the server: with more requests
    in flight, some wait for a slot. ``slots`` is None where they are unknown."""
    if axis != CONCURRENCY or slots is None:
        return tuple(knees)
    text = (
        f"The server has {format_count(slots, 'slot')}, so above {slots} in flight requests wait."
    )
    return tuple(
        Knee(rule=ASYMPTOTIC, value=slots, text=text)
        if knee.rule == ASYMPTOTIC and max(knee.value or 0.0, knee.low or 0.0) > slots
        else knee
        for knee in knees
    )


def _known(value: float, error: float | None) -> str:
    """``error`` is its standard error."""
    return format_supported(value, None if error is None else NORMAL_REACH * error, digits=3)


def _fitted(value: float, reach: float | None) -> str:
    return (
        format_brief(value, digits=2) if reach is None else format_supported(value, reach, digits=3)
    )


def format_knee(knee: Knee) -> str:
    """The value of a stage, or of a fit with its known digits."""
    if knee.value is None:
        return "none"
    return (
        _fitted(knee.value, knee.reach)
        if knee.rule in (ASYMPTOTIC, USL)
        else format_plain_number(knee.value)
    )


def find_scalability_knee(axis: str, levels: Sequence[LoadLevel]) -> Knee:
    """The peak of the Universal Scalability Law fitted to throughput over users.

    A curve that stays flat at capacity also fits it with a kappa above 0. So a peak requires an
    interval of kappa above 0, and a visible fall of throughput.
    """
    known = _measured(levels)
    if (different := _count_different(known)) < MIN_STAGES:
        text = _too_few("A fit", different, least=MIN_STAGES, of="level")
        return Knee(rule=USL, value=None, text=text)
    n = np.array([level.value for level, _ in known], np.float64)
    x = np.array([per_s for _, per_s in known], np.float64)
    law = fit_scalability_law(n, x)
    errors = _errors(known)
    low, high = kappa_interval(law, n, x, errors)
    fit = (
        f"X(N) = {law.lam:.3g} N / (1 + {law.sigma:.2g} (N - 1) + {law.kappa:.2g} N (N - 1)) "
        f"requests/s, "
        f"R2 {law.r2:.3f} over {len(known)} stages, 95% interval of kappa {max(0.0, low):.2g} to "
        f"{high:.2g}"
    )
    if law.r2 < MIN_R2:
        return Knee(
            rule=USL,
            value=None,
            text=f"{fit}: it does not fit the measured throughput (R2 below {MIN_R2:g}).",
        )
    fallen = throughput_falls(x, errors)
    if low > 0 and fallen and law.peak <= n[-1]:
        least_n, most_n = (law._replace(kappa=kappa).peak for kappa in (high, low))
        peak = Knee(
            rule=USL,
            value=law.peak,
            low=least_n,
            high=most_n,
            reach=(most_n - least_n) / 2,
            text="",
        )
        ends = " to ".join(format_supported(end, peak.reach, digits=3) for end in (least_n, most_n))
        return replace(
            peak,
            text=f"{fit}: throughput peaks at {axis} {format_knee(peak)} ({ends} over that "
            f"interval).",
        )
    best, most = max(known, key=lambda pair: pair[1])
    last, least = known[-1]
    if fallen:
        text = (
            f"throughput falls from {_known(most, best.requests_per_s_error)}/s at "
            f"{format_plain_number(best.value)} to {_known(least, last.requests_per_s_error)}/s at "
            f"{format_plain_number(last.value)}, but the fit cannot locate the peak"
        )
        return Knee(rule=USL, value=None, text=f"{fit}: {text}.")
    level = f"levels off at {_known(most, best.requests_per_s_error)}/s"
    course = f"still rises at {describe_levels(axis, last)}" if _rising(known) else level
    text = f"{fit}: throughput {course}, no peak within the measured range."
    return Knee(rule=USL, value=None, low=float(n[-1]), text=text)


def _errors(known: Sequence[tuple[LoadLevel, float]]) -> Floats | None:
    """The standard errors of each stage's throughput. None: one is not known."""
    errors = [level.requests_per_s_error for level, _ in known]
    return None if None in errors else np.array(errors, np.float64)


def throughput_falls(x: Floats, errors: Floats | None) -> bool:
    """Whether throughput ``x`` is lower at the last stage than at the best one, by more than
    chance."""
    best = int(x.argmax())
    error = 0.0 if errors is None else math.hypot(errors[best], errors[-1])
    return bool(x[best] - x[-1] > max(MIN_ERRORS * error, MIN_FALL * x[best]))


def _rising(known: Sequence[tuple[LoadLevel, float]]) -> bool:
    """Whether the highest stage has more throughput than each other one."""
    *others, (_, last) = known
    return last > max((x for _, x in others), default=0.0) * (1 + MIN_GAIN)


# -- of other axes ---------------------------------------------------------------------------------


def find_saturation_knee(axis: str, levels: Sequence[LoadLevel]) -> Knee:
    """The highest rate that the server keeps up with: answers come at 95 % and more of the rate of
    arrivals. It is open at a rate of which two stages say different things."""
    visits = dict[float, list[LoadLevel]]()
    sound = dict[float, list[LoadLevel]]()
    for level in levels:
        if level.kept_up is None:
            continue
        visits.setdefault(level.value, []).append(level)
        of_value = sound.setdefault(level.value, [])
        if level.sound:
            of_value.append(level)
    longest = [
        max(sound[value] or some, key=lambda level: level.duration_s or 0.0)
        for value, some in visits.items()
    ]

    def status_of(level: LoadLevel) -> str | None:
        if len({one.kept_up for one in sound[level.value]}) > 1:
            return INCONCLUSIVE
        return PASS if level.kept_up else FAIL

    passing = find_passing_stages(longest, status_of)
    if passing.highest is None:
        lowest = next((level for level in longest if level.sound), None)
        if lowest is None:
            return Knee(rule=SATURATION, value=None, text=_explain_no_saturation(axis, levels))
        if status_of(lowest) == INCONCLUSIVE:
            text = (
                "It is not decided whether the server keeps up: stages at "
                f"{describe_levels(axis, lowest)} answered "
                f"{_answered_by_visits(sound[lowest.value])}."
            )
            return Knee(rule=SATURATION, value=None, text=text)
        text = (
            f"The server keeps up with none of the rates: at {describe_levels(axis, lowest)} it "
            f"answered {_answered(lowest)}."
        )
        return Knee(rule=SATURATION, value=None, high=lowest.value, text=text)
    value = passing.highest.value
    high = None if passing.broken is None else passing.broken.value
    text = (
        f"The server keeps up to {describe_levels(axis, passing.highest)}: it answered "
        f"{_answered(passing.highest)}"
    )
    if passing.beyond is not None and passing.beyond.sound:
        beyond = _answered(passing.beyond)
        if status_of(passing.beyond) == INCONCLUSIVE:
            beyond = _answered_by_visits(sound[passing.beyond.value])
        text += f"; at {format_plain_number(passing.beyond.value)} {beyond}"
    else:
        text += f"; {describe_neighbours(axis, passing, status_of)}"
    return Knee(rule=SATURATION, value=value, low=value, high=high, text=f"{text}.")


def is_too_short_for_its_requests(level: LoadLevel) -> bool:
    """Its measured time saw too few requests due, or too few of them answered, to show whether the
    server keeps up."""
    return level.succeeded > 0 and level.answered_share is not None and level.kept_up is None


def _explain_no_saturation(axis: str, levels: Sequence[LoadLevel]) -> str:
    """Why no stage shows whether the server keeps up."""
    if all(level.answered_share is None for level in levels):
        return "The number of due requests is unknown."
    short = [level for level in levels if level.sound and is_too_short_for_its_requests(level)]
    if not short:
        return "No stage can be used."
    return (
        f"At {describe_levels(axis, *short)} the measured time was too short to show whether the "
        "server keeps up: too few requests were due or answered in it."
    )


def _answered_by_visits(visits: Sequence[LoadLevel]) -> str:
    """``57.1% to 100.0% of the due requests``"""
    shares = [level.answered_share or 0.0 for level in visits]
    return f"{min(shares):.1%} to {max(shares):.1%} of the due requests"


def _answered(level: LoadLevel) -> str:
    chance = (
        ", the rest may happen to be in flight"
        if level.kept_up and (level.answered_share or 0.0) < MIN_ANSWERED_SHARE
        else ""
    )
    share = level.answered_share or 0.0
    if round(share, 3) > 1:
        return (
            f"more requests than were due ({share:.1%}), because some were due before the measured "
            "time"
        )
    return f"{share:.1%} of the due requests{chance}"


def find_best_limit(axis: str, levels: Sequence[LoadLevel]) -> Knee:
    """The limit with the best goodput, and those whose intervals overlap with its own."""
    known = [
        (level, level.goodput_per_s)
        for level in levels
        if level.sound and level.goodput_per_s is not None
    ]
    if not known:
        text = (
            "The best limit has the best goodput, so it needs a definition of a good request "
            "(--goodput or --slo)."
        )
        return Knee(rule=BEST, value=None, text=text)
    if len(known) < MIN_COMPARED:
        return Knee(rule=BEST, value=None, text=_too_few("A comparison", len(known), of="limit"))
    best, most = max(known, key=lambda pair: pair[1])
    if not most:
        return Knee(rule=BEST, value=None, text="No request was good under any limit.")
    ends = (best.goodput_low, best.goodput_high)
    others = [
        level
        for level, _ in known
        if level is not best and _overlap(ends, (level.goodput_low, level.goodput_high))
    ]
    reach = None if ends[0] is None or ends[1] is None else (ends[1] - ends[0]) / 2
    interval = "unknown, too few requests"
    if reach is not None:
        interval = " to ".join(format_supported(end, reach, digits=3) for end in ends)
    goodput = format_supported(most, reach, digits=3)
    text = (
        f"The best goodput, {goodput} requests/s (95% interval {interval}), is at "
        f"{describe_levels(axis, best)}"
    )
    if others:
        text += f"; its interval overlaps with the interval at {describe_levels(axis, *others)}"
    values = [level.value for level in (best, *others)]
    return Knee(rule=BEST, value=best.value, low=min(values), high=max(values), text=f"{text}.")


def _overlap(
    ends: tuple[float | None, float | None], other: tuple[float | None, float | None]
) -> bool:
    """Whether two intervals overlap. Unknown ends overlap with everything."""
    (low, high), (least, most) = ends, other
    return (low is None or most is None or most >= low) and (
        high is None or least is None or least <= high
    )


def _measured(levels: Sequence[LoadLevel]) -> list[tuple[LoadLevel, float]]:
    """(stage, requests a second) of the sound stages that have a throughput. Several visits to a
    level are one: the longest, with the throughput of all of them."""
    visits = dict[float, list[LoadLevel]]()
    for level in levels:
        if level.sound and level.requests_per_s:
            visits.setdefault(level.value, []).append(level)
    merged = [_merge_visits(some) for some in visits.values()]
    return [(level, level.requests_per_s or 0.0) for level in merged]


def _merge_visits(visits: Sequence[LoadLevel]) -> LoadLevel:
    """The longest of these visits to a level, with the throughput over the time of all of them."""
    if len(visits) == 1:
        return visits[0]
    longest = max(visits, key=lambda level: level.duration_s or 0.0)
    weights = [level.duration_s or 1.0 for level in visits]
    whole = sum(weights)
    rates = [level.requests_per_s or 0.0 for level in visits]
    mean = sum(weight * rate for weight, rate in zip(weights, rates, strict=True)) / whole
    errors = [level.requests_per_s_error for level in visits]
    known = [error for error in errors if error is not None]
    error = None
    if len(known) == len(visits):
        parts = [weight * one for weight, one in zip(weights, known, strict=True)]
        # visits that differ by more than their errors know the level no better
        error = max(math.hypot(*parts) / whole, statistics.stdev(rates) / math.sqrt(len(rates)))
    return replace(longest, requests_per_s=mean, requests_per_s_error=error)


def _count_different(known: Sequence[tuple[LoadLevel, float]]) -> int:
    """The number of different levels, as several visits to one show nothing of how the load
    matters."""
    return len({level.value for level, _ in known})


def _too_few(what: str, count: int, *, least: int = MIN_COMPARED, of: str = "stage") -> str:
    """Why there is no knee: only ``count`` valid stages have a throughput, or a goodput."""
    return f"{what} needs {least} valid {of}s, but there {'is' if count == 1 else 'are'} {count}."


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]
