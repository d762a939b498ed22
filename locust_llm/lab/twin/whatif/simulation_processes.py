"""Simulation processes simulate what-ifs on all cores. Ctrl-C ends them silently."""

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from itertools import chain
from multiprocessing import get_context
from typing import Final, NamedTuple

from locust_llm.lab.twin.twin_model import ServerModel
from locust_llm.lab.twin.twin_prediction import RUNS, Logarithms, WhatIf, simulate_logarithms
from locust_llm.lab.twin.virtual_replay import Lengths, OfferedLoad
from locust_llm.records.machine import usable_cores

FEW: Final = 24
"""Up to this many simulations, processes take longer to start than they save."""
CHUNK: Final = 2
"""A process gets at most this many what-ifs at a time, and completes them even after Ctrl-C."""
LogarithmsByFigure = dict[str, Logarithms]
"""Each figure of a what-if has its logarithms."""
Progress = Callable[[int, int], None]


class SharedWork(NamedTuple):
    """Holds the parts that all what-ifs share."""

    models: Sequence[ServerModel]
    lengths: Lengths
    figures: tuple[str, ...]
    runs: int = RUNS
    """Each model has this many simulations."""
    rough: bool = False
    """Rough simulations have fewer requests."""
    sampled: bool = False
    """The lengths are a random sample from the sweep."""

    def count(self, load: OfferedLoad) -> int:
        """Returns the requests of one simulation."""
        size = ROUGH if self.rough else EXACT
        return max(size.fewest, size.rounds * load.users) if load.users else size.open


class Size(NamedTuple):
    """Sets the requests of a closed loop, per user and at least, and of an open loop, which must
    show a queue."""

    rounds: int
    fewest: int
    open: int


ROUGH: Final = Size(6, 60, 300)
EXACT: Final = Size(6, 300, 600)


def simulate_what_ifs(
    work: SharedWork,
    what_ifs: Sequence[WhatIf],
    *,
    processes: int = 0,
    on_progress: Progress = lambda done, most: None,
) -> list[LogarithmsByFigure]:
    """Simulates in the order of ``what_ifs``. ``processes`` 0 uses all cores."""
    processes = min(processes or usable_cores(), len(what_ifs))
    if processes < 2 or len(what_ifs) * len(work.models) * work.runs <= FEW:
        found = list[LogarithmsByFigure]()
        for number, one in enumerate(what_ifs):
            found.append(_one(work, one))
            on_progress(number + 1, len(what_ifs))
        return found
    return _over(processes, work, what_ifs, on_progress)


def _over(
    processes: int, work: SharedWork, what_ifs: Sequence[WhatIf], on_progress: Progress
) -> list[LogarithmsByFigure]:
    size = max(1, min(CHUNK, len(what_ifs) // (4 * processes)))
    found = dict[int, list[LogarithmsByFigure]]()
    done = 0
    executor = ProcessPoolExecutor(processes, get_context("spawn"), _begin, (work,))
    try:
        with _without_interrupts():  # what is started here ignores Ctrl-C: this process ends it
            futures: dict[Future[list[LogarithmsByFigure]], int] = {
                executor.submit(_several, what_ifs[begin : begin + size]): begin
                for begin in range(0, len(what_ifs), size)
            }
        for future in as_completed(futures):
            found[futures[future]] = future.result()
            done += len(found[futures[future]])
            on_progress(done, len(what_ifs))
    finally:
        executor.shutdown(cancel_futures=True)
    return list(chain.from_iterable(found[begin] for begin in sorted(found)))


@contextmanager
def _without_interrupts() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


_work: SharedWork | None = None
"""Each process of the pool has its work."""


def _begin(work: SharedWork) -> None:
    global _work
    _work = work


def _several(what_ifs: Sequence[WhatIf]) -> list[LogarithmsByFigure]:
    assert _work is not None
    return [_one(_work, one) for one in what_ifs]


def _one(work: SharedWork, what_ifs: WhatIf) -> LogarithmsByFigure:
    count = work.count(what_ifs.load)
    return simulate_logarithms(
        work.models,
        what_ifs,
        work.lengths,
        work.figures,
        count=count,
        runs=work.runs,
        sampled=work.sampled,
    )
