"""Goodput: what a good request is by the rules of a run, and how many there were."""

from msgspec.structs import replace

from locust_llm.report.summary_rows import GoodRequests, Row
from locust_llm.slo.rules import Rule, define_good_request

from .censoring import ValueBounds, bound_rate_amounts, bound_share_hits
from .observed_rule_values import Evaluation, compute_rule_value


def measure_goodput(seen: Evaluation) -> GoodRequests | None:
    """The attainment and goodput of these requests. None: there is no definition or no value.

    Of a stage, attainment is of the requests of its latencies, and goodput of the requests that ended
    in its measured time, as all rates are.
    """
    conditions, source = define_good_request(seen.run.settings.rules)
    if not conditions:
        return None
    share = compute_rule_value(Rule("attainment", ">=", 0.0, "", given=conditions), seen)
    if seen.run.stage is not None:
        seen = seen._replace(main=seen.ended)
    rate = compute_rule_value(Rule("goodput", ">=", 0.0, "/s", given=conditions), seen)
    if share.value is None or rate.value is None:
        return None
    low, high = rate.ends or (None, None)
    words = " and ".join(map(str, conditions))
    return GoodRequests(
        conditions=f"{words} ({source})",
        attainment=share.value if share.worst is None else share.worst,
        attainment_most=None if share.worst is None else share.value,
        goodput_per_s=rate.value if rate.worst is None else rate.worst,
        low=low,
        high=high,
    )


def make_goodput_rows(seen: Evaluation) -> list[Row]:
    """AIPerf's goodput, good_request_count and good_request_fraction for its ``--goodput``; nothing
    without one.

    A cut request is not known to be good. Where it may be, ``min`` and ``max`` bound the values.
    """
    if not (given := seen.run.settings.rules.good):
        return []
    rule = Rule("goodput", ">=", 0.0, "/s", given=given)
    seconds = seen.time.seconds
    through = bound_rate_amounts(rule, seen.ended)
    here = bound_share_hits(replace(rule, metric="attainment"), seen.main)

    def row(label: str, tag: str, unit: str, known: ValueBounds, over: float) -> Row:
        low, high = (
            float(side.sum()) / over if over > 0 else None for side in (known.low, known.high)
        )
        ends = (None, None) if known.known else (low, high)
        return Row(label=label, tag=tag, unit=unit, avg=low, min=ends[0], max=ends[1])

    return [
        row("Goodput", "goodput", "requests/s", through, seconds),
        row("Good Requests", "good_request_count", "requests", here, 1),
        row("Good Request Fraction", "good_request_fraction", "ratio", here, max(len(here.low), 1)),
    ]
