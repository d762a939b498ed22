"""Delivery: whatever the wire loses or brings twice, each message is read once and in its order."""

from hypothesis import given
from hypothesis import strategies as st
from support import unpatched_locust  # noqa: F401  before the rest

from locust_llm.wire.reliable_delivery import AGAIN_S, IncomingPost, OutgoingPost


class Wire:
    """Both ends on one clock; ``carries`` says of each message in turn whether it arrives, and then
    once or twice."""

    def __init__(self, carries: list[int] | None = None) -> None:
        self.now, self.sent = 100.0, 0
        self.carries = carries or []
        self.read: list[int] = []
        self.incoming = IncomingPost()
        self.outgoing = OutgoingPost(self._arrive, lambda: self.now)

    def post(self) -> None:
        self.outgoing.post(lambda number: str(number).encode())

    def _arrive(self, packed: bytes) -> None:
        copies = self.carries[self.sent] if self.sent < len(self.carries) else 1
        self.sent += 1
        for _ in range(copies):
            if self.incoming.take(int(packed)):
                self.read.append(int(packed))

    def status(self) -> None:
        """It says how far the other end has come."""
        self.outgoing.heard(self.incoming.heard)


@given(st.lists(st.integers(0, 2), max_size=60), st.lists(st.booleans(), min_size=1, max_size=20))
def test_each_is_read_once_and_in_order(carries: list[int], posts: list[bool]) -> None:
    wire = Wire(carries)
    for posted in posts:
        if posted:
            wire.post()
        else:
            wire.now += 0.3
            wire.status()
        assert wire.read == list(range(1, len(wire.read) + 1))
    for _ in range(4 * len(carries) + 4):  # the wire is whole by then
        wire.now += AGAIN_S + 0.1
        wire.status()
    assert wire.read == list(range(1, sum(posts) + 1))
    sent = wire.sent
    wire.now += 60.0
    wire.status()
    assert wire.sent == sent  # and nothing is sent any more


def test_nothing_is_sent_again_while_news_comes() -> None:
    """A message that waits for its status is not lost."""
    wire = Wire([1, 0, 1])
    wire.post()
    wire.now += AGAIN_S - 0.1
    wire.post()  # lost
    wire.status()
    wire.now += AGAIN_S - 0.1
    wire.status()
    assert (wire.read, wire.sent) == ([1], 2)
    wire.now += 0.2
    wire.status()
    assert (wire.read, wire.sent) == ([1, 2], 3)
