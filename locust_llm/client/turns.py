"""What can wait gives way: one greenlet for each turn of the event loop, so that what is due in between is sent first."""

import gevent
from gevent.lock import BoundedSemaphore


class LoopTurns:
    """Of the event loop of one process. gevent runs up to fifty greenlets that are ready before it looks at timers and
    sockets again: where each of them has a finished answer to decode, a send that is due waits for 10 ms."""

    def __init__(self) -> None:
        self._first = BoundedSemaphore(1)
        self._taken = -1
        """The last turn of the loop that somebody took."""

    def take(self) -> None:
        """Returns when it is this greenlet's turn, in order of arrival: at once where nobody had this one."""
        hub = gevent.get_hub()
        loop = hub.loop
        with self._first:
            while loop.iteration == self._taken:
                with loop.timer(0.0) as turn:  # 2 µs; sleep(0) would not turn it
                    hub.wait(turn)
            self._taken = loop.iteration


finishing = LoopTurns()
"""Of requests whose answers are over."""
