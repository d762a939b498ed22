"""Start times: when each user of this process sends its first request of a phase.

Users that start at once wait together, and go on waiting together: their requests are no
independent samples. So those of a closed loop start one after the other.
"""


class StartTimes:
    """Of all processes together they are ``spacing_s`` apart; each process has every n-th."""

    def __init__(self, place: int = 0, processes: int = 1) -> None:
        """``place``: of this process, from 0."""
        self._processes = max(1, processes)
        self._place = place % self._processes
        self._phase = ""
        self._spacing_s = 0.0
        self._first_at = 0.0
        self._started = set[int]()

    def spread(self, phase: str, spacing_s: float) -> None:
        """This phase begins, and its users start so far apart; in any other they start at once."""
        self._phase, self._spacing_s = phase, spacing_s
        self._started.clear()

    def assign(self, user: int, phase: str, now: float) -> float:
        """When this user may send, monotonic seconds; ``now`` where it has started, or need not
        wait. The first one to ask begins the count."""
        if phase != self._phase or user in self._started:
            return now
        if not self._started:
            self._first_at = now
        turn = len(self._started) * self._processes + self._place
        self._started.add(user)
        return self._first_at + turn * self._spacing_s
