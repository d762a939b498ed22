"""The quotas: the global limit divided over the processes that send, so that it holds at every moment.

Quotas are absolute. One falls at once; it rises only into what the others have given up for certain.
"""

from collections import Counter
from collections.abc import Callable


def divide(limit: int, processes: int) -> list[int]:
    """Quotas that sum to ``limit``, as even as can be; the first ones get what is left over."""
    share, rest = divmod(limit, processes)
    return [share + (place < rest) for place in range(processes)]


class Quotas:
    """``send(kind, worker, **data)`` sends a message, to all for None; ``senders()``: the processes that there are now."""

    def __init__(self, send: Callable[..., None], senders: Callable[[], list[str]], *, gated: bool) -> None:
        """``gated``: in some phase of the run there is a limit."""
        self.limit: int | None = None
        self._send, self._senders, self._gated = send, senders, gated
        self._quotas: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        """By process: as many slots as it may still be using."""
        self._numbers: Counter[str] = Counter()

    def share_out(self) -> None:
        """Divide the limit anew."""
        if self.limit is None:
            self._send("llm_limit", limit=None, number=0)
            return
        workers = self._senders()
        for worker, target in zip(workers, divide(self.limit, max(1, len(workers))), strict=False):
            free = self.limit - sum(self._held[other] for other in workers)
            quota = min(target, self._held[worker] + max(0, free))
            if quota != self._quotas[worker]:
                self._quotas[worker] = quota
                self._held[worker] = max(self._held[worker], quota)
                self._numbers[worker] += 1
                self.tell(worker)

    def heard(self, worker: str, used: int, number: int) -> None:
        """A process tells how many slots it uses, and the number of the last limit that reached it."""
        if self.limit is None:
            return
        if number != self._numbers[worker]:
            self.tell(worker)  # on its way, or lost
        elif (held := max(self._quotas[worker], used)) < self._held[worker]:
            self._held[worker] = held
            self.share_out()

    def tell(self, worker: str) -> None:
        limit = self._quotas[worker] if self._gated else None
        self._send("llm_limit", worker, limit=limit, number=self._numbers[worker])
