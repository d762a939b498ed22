"""Request selection: some of the requests of a run, and sums and means of their columns."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from locust_llm.report.array_types import Bools, Floats
from locust_llm.report.request_table import RequestTable


@dataclass(frozen=True)
class RequestSelection:
    """Some of the requests of a run. It is a mask, as there may be a million requests, and copies
    would double the memory."""

    requests: RequestTable
    chosen: NDArray[np.bool_]

    def only(self, mask: Bools) -> "RequestSelection":
        """``mask`` is of all requests."""
        return RequestSelection(self.requests, self.chosen & mask)

    def where(self, these: NDArray[np.bool_]) -> "RequestSelection":
        """The selected requests for which ``these``, which has their length, is true."""
        chosen = self.chosen.copy()
        chosen[self.chosen] = these
        return RequestSelection(self.requests, chosen)

    def outcome(self, *outcomes: str) -> "RequestSelection":
        return self.only(self.requests.has("outcome", *outcomes))

    def count(self, column: str, value: str) -> int:
        return int((self.requests.has(column, value) & self.chosen).sum())

    def texts(self, column: str) -> dict[str, int]:
        """How many requests have each text of a column, the most frequent first. Requests without a
        text are left out."""
        counted = self.requests.texts(column).rows(self.chosen).count_rows().items()
        return {text: n for text, n in sorted(counted, key=lambda item: -item[1]) if text}

    def __getitem__(self, column: str) -> Floats:
        """The values of a column; NaN where a request has none. Nobody may write to them."""
        values = self.requests.values(column)
        if not self.chosen.all():
            values = values[self.chosen]
        return values.astype(np.float64, copy=False)

    @property
    def size(self) -> int:
        return int(self.chosen.sum())

    def span(self) -> tuple[float, float]:
        """(first send, last end or chunk) in Unix seconds: AIPerf's min_request_timestamp and
        max_response_timestamp. NaN: there is none.

        A request that could not be sent counts from ``asked_at`` on. A server that was down for a
        while must not shorten the time for the throughput.
        """
        if not self.size:
            return math.nan, math.nan
        began = np.where(np.isnan(self["sent_at"]), self["asked_at"], self["sent_at"])
        return float(began.min()), float(np.fmax(self["closed_at"], self["last_chunk_at"]).max())


def ratio_of_sums(of: Floats, to: Floats) -> float | None:
    """The sum of ``of`` over the sum of ``to``, over the requests of which both are known."""
    known = ~(np.isnan(of) | np.isnan(to))
    whole = float(to[known].sum())
    return float(of[known].sum()) / whole if whole else None


def mean_of_known(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def sum_of_known(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.sum()) if len(known) else None
