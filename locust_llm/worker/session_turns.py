"""Session turns: the turns of one session. Each is sent when the turns that it waits for have
ended, side by side where possible."""

import time
from typing import Any

import gevent
from gevent import GreenletExit
from gevent.pool import Group

from locust_llm.client.chat_answer import count_answer_tokens
from locust_llm.records.outcomes import OK
from locust_llm.records.record import Record
from locust_llm.worker.send_permits import Permit
from locust_llm.workload.conversation import Conversation, ConversationRequest
from locust_llm.workload.dataset_formats import DatasetSession

from .request_to_send import make_turn
from .send_request import RequestSender, SenderPool


class SessionTree:
    """One session under way. A line of turns is a tree without branches."""

    def __init__(
        self, branches: SenderPool, conversation: Conversation, item: DatasetSession | None, *,
        name: str | None, headers: dict[str, str] | None, keep_text: bool, body: dict[str, Any],
    ) -> None:  # fmt: skip
        """``item`` comes from a file, whose turns may name their output length."""
        self._branches, self._conversation, self._item = branches, conversation, item
        self._name, self._headers, self._keep_text, self._body = name, headers, keep_text, body
        self._sender = branches.main.sender
        self.records: list[Record] = []
        """The records of its turns, in the order in which they ended."""
        self._start: tuple[float | None, float | None] = None, None
        """(time of the first turn in the trace, when it is due)."""
        self._group = Group()
        self._branched = False
        self._error: BaseException | None = None

    def send(self, permit: Permit) -> None:
        """Send all turns, the first one with this permit. Raises StopUser where the run ends, and
        MediaError for an image."""
        first, *others = self._ready()
        self._start = first.at_s, permit.due_at
        try:
            self._beside(others, permit, time.monotonic())
            self._line(self._branches.main, first, permit)
            if self._branched:  # the last turn of the main line need not be the session's last
                self._branches.main.turnaround.forget()
            self._group.join()
        finally:
            self._group.kill()
        if self._error is not None:
            raise self._error

    def _ready(self) -> list[ConversationRequest]:
        """The turns that wait for no other turn."""
        return list(iter(self._conversation.next, None))

    def _line(self, branch: RequestSender, ask: ConversationRequest, permit: Permit) -> None:
        """Send this turn and the turns that follow it one by one. Other ready turns are sent beside
        them."""
        while True:
            record = self._request(branch, ask, permit)
            ready = self._ready()
            if not ready:
                return
            ask, *others = ready
            self._beside(others, permit, record.closed_at)
            following = self._following(branch, permit, ask, record.closed_at)
            if following is None:
                return
            permit = following

    def _beside(self, asks: list[ConversationRequest], permit: Permit, ended_at: float) -> None:
        """Send each of these turns on its own. The turns before ended at ``ended_at``, and the last
        one had this permit."""
        for ask in asks:
            self._branched = True
            self._group.spawn(self._branch, ask, permit, ended_at)

    def _branch(self, ask: ConversationRequest, permit: Permit, ended_at: float) -> None:
        branch = self._branches.take()
        try:
            following = self._following(branch, permit, ask, ended_at)
            if following is not None:
                self._line(branch, ask, following)
        except GreenletExit:
            raise
        except BaseException as error:  # raised where the session is waited for
            self._error = self._error or error
        finally:
            self._branches.give_back(branch)

    def _following(
        self, branch: RequestSender, permit: Permit, ask: ConversationRequest, ended_at: float
    ) -> Permit | None:
        """A permit for a later turn, due at the time of its trace, or after its wait. None: the
        warmup is over, and its sessions with it."""
        if permit.item is not None:
            start_at_s, due_at = self._start
            if ask.at_s is not None and start_at_s is not None and due_at is not None:
                due_at += (ask.at_s - start_at_s) / self._sender.settings.replay_speedup
            else:
                due_at = ended_at + ask.delay_s
            return permit._replace(due_at=due_at)
        # its prompt was made meanwhile
        branch.turnaround.pause(ask.delay_s)
        gevent.sleep(max(0.0, ended_at + ask.delay_s - time.monotonic()))
        following = branch.permit(later=True)
        begun_in = self._sender.begun_in
        if begun_in(following.phase) == begun_in(permit.phase):
            return following
        self._sender.permits.put_back(following)
        return None

    def _request(self, branch: RequestSender, ask: ConversationRequest, permit: Permit) -> Record:
        conversation, item = self._conversation, self._item
        more = conversation.left > 0
        sized = item is None or item.turns[ask.turn].output_tokens is not None
        turn = make_turn(ask, conversation, sized=sized)
        record = branch.send(
            permit, turn, self._name, self._headers, self._keep_text or more, self._body
        )
        self.records.append(record)
        if record.outcome == OK:
            mark = branch.kept.mark(self._sender)
            conversation.add_answer(
                branch.text if more else "", count_answer_tokens(record), to=ask.turn, **mark
            )
        return record
