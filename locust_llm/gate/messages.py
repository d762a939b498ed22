"""Gate messages: what a process and the control say to each other about shares of the gate's
limit."""

from locust_llm.records.message import ControlMessage


class GateStatus(ControlMessage, frozen=True):
    """Of the prefill gate of one process."""

    used: int
    """Requests in prefill."""
    waiting: int
    """At the gate."""
    number: int
    """Of the last share that reached it."""
    exhausted: bool = False
    """The admissions of this share are used up: it may go to another process."""
    waited_s: float = 0.0
    """Wait so far of the first at the gate."""


class Share(ControlMessage, frozen=True):
    """Of the limit on concurrent prefills, for one process."""

    share: int | None
    """None: no gate."""
    number: int
    """A later one has a higher number."""
    turns: int | None = None
    """Admissions after which the process gives it up by itself; None: it keeps it."""
    limit: int | None = None
    """Over all processes."""
    wanted: bool = False
    """Demand is above the limit: a process reports at once when a slot of its share is free."""
