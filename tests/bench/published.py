"""Published: fits a twin to a published table, as a check out of sample: ``make published``. Prints
Markdown, asserts nothing.

Costs are fitted to the means of some rows below saturation; the others, and where the server
saturates, come from the twin. The settings were published with the table (calibration.py): a table
shows no scheduler.
"""

import argparse
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Final

from calibration import H100_LLAMA_8B, MOST_OPEN, OUTPUT_TOKENS, PROMPT_TOKENS, SECONDS, Point
from tabulate import tabulate

from locust_llm.lab.twin.server_observations import ObservedRequest, ObservedStage
from locust_llm.lab.twin.step_cost_fit import fit_cost
from locust_llm.lab.twin.twin_engine import make_twin_engine
from locust_llm.lab.twin.twin_model import SchedulerSettings, ServerModel, StepCosts
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.virtual_time import Virtual, VirtualRequest

MOST: Final = 600
"""A row is replayed with this many requests for the fit, as it has means only."""


def stage(point: Point) -> ObservedStage:
    """Makes requests that all have the means of a row."""
    ttft_s = point.ttft_ms / 1e3
    gap_s = point.tpot_ms / 1e3
    count = min(MOST, round(SECONDS * point.rate_per_s))
    prompt = PROMPT_TOKENS - point.cached_prompt_tokens
    seen = []
    for number in range(count):
        at = number / point.rate_per_s
        token_at = tuple(at + ttft_s + gap_s * place for place in range(OUTPUT_TOKENS))
        seen.append(ObservedRequest(at, token_at, prompt, OUTPUT_TOKENS))
    return ObservedStage(users=0, rate=point.rate_per_s, requests=tuple(seen))


def predict_point(model: ServerModel, point: Point) -> tuple[float, float, float]:
    """Returns TTFT and TPOT in ms, and requests per second, measured like the table."""
    clock = VirtualClock()
    load = Virtual(clock, make_twin_engine(model, clock), most_open=MOST_OPEN)
    request = VirtualRequest(PROMPT_TOKENS - point.cached_prompt_tokens, OUTPUT_TOKENS)
    load.open_loop(
        (n / point.rate_per_s, request) for n in range(round(SECONDS * point.rate_per_s))
    )
    rows = load.run()
    done = len(rows) / max(row.done_at for row in rows)
    return fmean(row.ttft_s for row in rows) * 1e3, fmean(row.itl_s for row in rows) * 1e3, done


def table(points: Sequence[Point], fitted: Sequence[int]) -> Iterator[list[str]]:
    policy = "chunked" if points[0].policy == "v1" else "prefill-first"
    begin = ServerModel(
        settings=SchedulerSettings(
            policy=policy, max_num_batched_tokens=8192, max_num_seqs=points[0].max_num_seqs
        ),
        cost=StepCosts(fixed_s=0.007, token_s=3e-5),
    )
    model = fit_cost(begin, [], [stage(points[number]) for number in fitted]).model
    for number, point in enumerate(points):
        ttft_ms, tpot_ms, done = predict_point(model, point)
        true = (point.ttft_ms, point.tpot_ms, point.completed_per_s)
        pairs = zip((ttft_ms, tpot_ms, done), true, strict=True)
        cells = (f"{one:,.1f} / {other:,.1f} ({one / other - 1:+.0%})" for one, other in pairs)
        yield [f"{point.rate_per_s:g}", "fitted" if number in fitted else "", *cells]


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    head = ["requests/s", "", "TTFT, ms: predicted / measured", "TPOT, ms", "completed/s"]
    for policy, cached in (("v1", 0), ("v1", 128), ("v0", 0)):
        points = [
            one
            for one in H100_LLAMA_8B
            if (one.policy, one.cached_prompt_tokens) == (policy, cached)
        ]
        below = [number for number, one in enumerate(points) if not one.saturated]
        used = below[::2] if len(below) > 2 else below
        print(
            f"## {policy}, {cached} tokens "
            f"cached\n\n{tabulate(table(points, used), head, tablefmt='github')}\n"
        )


if __name__ == "__main__":
    main()
