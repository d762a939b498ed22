"""Gate chart: how many requests await their first token, wait at the gate and decode, and the
gate's limit."""

from collections.abc import Iterator

import numpy as np

from locust_llm.report.gate_occupancy import Occupancy, thin_occupancy
from locust_llm.text.format import format_brief

from .plot_data import MAX_POINTS, Plot, PlotAxis, PlotMark
from .time_axis import TIME_GROUP, TimeAxis, make_steps


def plot_gate_over_time(
    levels: Occupancy, time: TimeAxis, marks: tuple[PlotMark, ...], *, generates: bool
) -> Iterator[Plot]:
    thin = thin_occupancy(levels, MAX_POINTS)
    if not len(thin["at"]):
        return
    at = thin["at"] - time.origin
    each = f"Each step is the mean over {(at[-1] - at[0]) / max(len(at) - 1, 1):.2g} s"
    half = (at[1] - at[0]) / 2 if len(at) > 1 else 0.0
    edges = np.append(at - half, at[-1] + half)
    used, waiting, decoding, limit = (
        thin[name] for name in ("used", "waiting", "decoding", "limit")
    )
    gated = bool((~np.isnan(limit)).any())
    what, until = ("Awaiting first token", "first token") if generates else ("In flight", "end")
    series = [make_steps(what.lower(), "prefill", edges, used, "area")]
    if gated:
        series.append(make_steps("limit", "limit", edges, limit))
    yield Plot(
        title=what + ", and the prefill limit" * gated,
        caption=f"{each}. {what}: sent, before the {until}.",
        label=f"Requests {what.lower()} over time: at most {format_brief(used.max(), digits=3)} on "
        f"average over a step" + (f", limit at most {np.nanmax(limit):g}" if gated else ""),
        x=time.axis,
        y=PlotAxis(label="requests"),
        series=tuple(series),
        marks=marks,
        group=TIME_GROUP,
        low=True,
        key="gate",
    )
    decodes = bool(decoding.max() > 0)  # not where whole answers come at once, of embeddings too
    others = [make_steps("decoding", "decode", edges, decoding)] * decodes
    if gated:
        others.append(make_steps("waiting for a prefill slot", "wait", edges, waiting, "area"))
    if not others:
        return
    shown = ["Decoding"] * decodes + [
        "waiting for a prefill slot" if decodes else "Waiting for a prefill slot"
    ] * gated
    most = f"decoding over time: at most {format_brief(decoding.max(), digits=3)}; " * decodes
    most += f"waiting for a prefill slot at most {format_brief(waiting.max(), digits=3)}; " * gated
    yield Plot(
        title=", and ".join(shown),
        caption=f"{each}.{' Decoding: between the first token and the end.' * decodes}",
        label=f"Requests {most}".rstrip("; "),
        x=time.axis,
        y=PlotAxis(label="requests"),
        series=tuple(others[::-1]),
        marks=marks,
        group=TIME_GROUP,
        low=True,
        key="decoding",
    )
