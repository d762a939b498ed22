"""Clock: how far the server's clock is ahead of this side's, from when each request arrived by its
spans.

A request arrives after it was sent, and no later than its first token less the time that the server
had it until then. So each gives two bounds of the offset, and those of all requests leave a little
between them. It enters no part of a request: these are differences of one clock.
"""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from locust_llm.report.sections.latency_parts.model import ServerClock
from locust_llm.report.server_columns import ReportedColumns


def measure_server_clock(
    requests: pd.DataFrame, reported: ReportedColumns, possible: NDArray[np.bool_]
) -> ServerClock | None:
    """``possible``: the requests whose server times can be. None where no span says when its
    request arrived.

    Where the clock drifts, or there are several, bounds contradict each other: the offset then lies
    between these.
    """
    sent = requests["sent_at"].to_numpy(np.float64)
    first = sent + requests["ttft_s"].to_numpy(np.float64)
    had = (
        np.fmax(
            reported.ttft_us, np.nan_to_num(reported.queue_us) + np.nan_to_num(reported.prefill_us)
        )
        / 1e6
    )
    most = reported.arrived_at - sent
    least = reported.arrived_at - (first - had)
    known = possible & np.isfinite(most) & np.isfinite(least)
    if not known.any():
        return None
    ends = float(least[known].max()), float(most[known].min())
    return ServerClock(ahead_s=sum(ends) / 2, within_s=abs(ends[1] - ends[0]) / 2)
