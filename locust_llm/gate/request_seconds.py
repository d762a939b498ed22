"""Request-seconds: the requests in one state, added up over time, so that their mean over any
stretch is exact."""

from collections.abc import Callable


class RequestSeconds:
    """The request-seconds of one state, such as decoding. A wait of 20 ms counts in full, though no
    status falls into it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._count = 0
        self._since = clock()
        self._until_then = 0.0

    def become(self, count: int) -> None:
        if count != self._count:
            self._until_then = self.total
            self._since = self._clock()
            self._count = count

    @property
    def total(self) -> float:
        return self._until_then + self._count * (self._clock() - self._since)
