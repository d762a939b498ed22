"""Worker processes: what-ifs simulated over all cores, in processes; Ctrl-C ends them without a
word of theirs."""

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Final, NamedTuple

from locust_llm.lab.twin.model import ServerModel
from locust_llm.lab.twin.predict import WhatIf, simulate_logarithms
from locust_llm.lab.twin.replay import Lengths, OfferedLoad
from locust_llm.records.machine import usable_cores

FEW: Final = 24
"""Simulations, up to which processes are not worth their start."""
CHUNK: Final = 2
"""What-ifs that a process gets at a time, at most: what it has begun it ends, also after Ctrl-C."""
Logarithms = dict[str, list[float]]
"""By figure, one of each model."""
Progress = Callable[[int, int], None]


class SharedWork(NamedTuple):
    """What all what-ifs share."""

    models: Sequence[ServerModel]
    lengths: Lengths
    figures: tuple[str, ...]
    rough: bool = False
    """With fewer requests."""
    sampled: bool = False
    """The lengths are those that happened to come in the sweep."""

    def count(self, load: OfferedLoad) -> int:
        """Requests of one simulation."""
        size = ROUGH if self.rough else EXACT
        return max(size.fewest, size.rounds * load.users) if load.users else size.open


class Size(NamedTuple):
    """Requests of a closed loop: so many of each user, and at least so many; of an open one, where
    a queue must show."""

    rounds: int
    fewest: int
    open: int


ROUGH: Final = Size(6, 60, 300)
EXACT: Final = Size(6, 150, 600)


def simulate_what_ifs(
    work: SharedWork,
    asked: Sequence[WhatIf],
    *,
    processes: int = 0,
    on_progress: Progress = lambda done, most: None,
) -> list[Logarithms]:
    """In the order of ``asked``. ``processes``: 0: as many as there are cores."""
    processes = min(processes or usable_cores(), len(asked))
    if processes < 2 or len(asked) * len(work.models) <= FEW:
        found = list[Logarithms]()
        for number, one in enumerate(asked):
            found.append(_one(work, one))
            on_progress(number + 1, len(asked))
        return found
    return _over(processes, work, asked, on_progress)


def _over(
    processes: int, work: SharedWork, asked: Sequence[WhatIf], on_progress: Progress
) -> list[Logarithms]:
    size = max(1, min(CHUNK, len(asked) // (4 * processes)))
    found = dict[int, list[Logarithms]]()
    done = 0
    executor = ProcessPoolExecutor(processes, get_context("spawn"), _begin, (work,))
    try:
        with _without_interrupts():  # what is started here ignores Ctrl-C: this process ends it
            futures: dict[Future[list[Logarithms]], int] = {
                executor.submit(_several, asked[begin : begin + size]): begin
                for begin in range(0, len(asked), size)
            }
        for future in as_completed(futures):
            found[futures[future]] = future.result()
            done += len(found[futures[future]])
            on_progress(done, len(asked))
    finally:
        executor.shutdown(cancel_futures=True)
    return [one for begin in sorted(found) for one in found[begin]]


@contextmanager
def _without_interrupts() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


_work: SharedWork | None = None
"""Of a process of the pool."""


def _begin(work: SharedWork) -> None:
    global _work
    _work = work


def _several(asked: Sequence[WhatIf]) -> list[Logarithms]:
    assert _work is not None
    return [_one(_work, one) for one in asked]


def _one(work: SharedWork, asked: WhatIf) -> Logarithms:
    count = work.count(asked.load)
    return simulate_logarithms(
        work.models, asked, work.lengths, work.figures, count=count, sampled=work.sampled
    )
