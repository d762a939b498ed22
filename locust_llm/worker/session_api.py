"""Session API: a session that the code of a locustfile leads: turns, branches beside them, tools
between them."""

import time
from collections.abc import Callable
from itertools import count
from types import TracebackType
from typing import Any, Self

from locust.exception import StopUser

import gevent
from gevent import GreenletExit
from gevent.event import AsyncResult
from gevent.pool import Group

from locust_llm.client.chat_answer import Answer
from locust_llm.gate.gate import GateClosed
from locust_llm.records.outcomes import OK
from locust_llm.records.record import Record
from locust_llm.worker.send_permits import Permit
from locust_llm.workload.conversation import Message, previous_turn
from locust_llm.workload.marked_session import MarkedSession

from .request_to_send import OutgoingTurn
from .send_request import RequestSender, SenderPool

Content = str | Message | list[Message] | None
"""What a turn adds to the history: a user's text, messages, or (None) a synthetic prompt."""


class _SessionState:
    """What the branches of a session share."""

    def __init__(self, branches: SenderPool, id: str) -> None:
        self.branches, self.id, self.sender = branches, id, branches.main.sender
        self.model = self.sender.sessions.model(id)
        self.tenant = branches.tenant(id)
        self.marked = MarkedSession(self.sender.markers)
        self.numbers = count()
        self.group = Group()
        self.records: list[Record] = []
        self.permit: Permit | None = None

    def take(self, branch: RequestSender) -> Permit:
        """A permit for the next turn. Raises StopUser when the run ends, or has its number of
        sessions."""
        sender, settings = self.sender, self.sender.settings
        permit = branch.permit(later=self.permit is not None)
        if self.permit is None:
            try:
                if sender.counts_sessions and not settings.input_file:
                    sender.item(permit.phase)
            except GateClosed:
                sender.permits.put_back(permit)
                raise StopUser from None
            self.permit = permit
        return permit

    def close(self) -> None:
        """End the session: others may use its branches."""
        self.group.kill()
        counted = self.sender.counts_sessions and not self.sender.settings.input_file
        if self.permit is not None and counted:
            self.sender.session_ended(self.permit, 0, dealt=True)


class TurnLine:
    """Turns one after the other. Each turn adds itself and its answer to the history. A failed turn
    leaves the history as it was."""

    def __init__(
        self,
        whole: _SessionState,
        branch: RequestSender,
        messages: list[Message],
        after: tuple[int, ...],
    ) -> None:
        self._whole, self._branch = whole, branch
        self.messages = messages
        """The history. Code may cut it or add to it."""
        self.after = after
        """The turns that must end before the next one."""
        self._tool_s: float | None = None

    def chat(
        self,
        content: Content = None,
        *,
        max_tokens: int | None = None,
        input_tokens: int | None = None,
        name: str | None = None,
        headers: dict[str, str] | None = None,
        **body: Any,
    ) -> Answer:
        """Send the history and this turn, and wait for the answer; see ``LLMUser.chat`` for the
        rest.

        Args:
            content: a text of the user, a message (such as a tool's), a list of messages, or None:
            a synthetic prompt.

        Raises:
            StopUser: the run is ending.
        """
        whole, branch = self._whole, self._branch
        branch.turnaround.enter()
        permit = whole.take(branch)
        prompts, asked = whole.sender.prompts, input_tokens
        asks_marker = False
        if content is None:
            first = not self.messages
            drawn, asks_marker = whole.marked.draw(
                lambda endings: (
                    prompts.draw(first, endings)
                    if input_tokens is None
                    else prompts.drawn(input_tokens, endings)
                ),
                first=first,
            )
            new = [*([prompts.system] if first and prompts.system else ()), drawn.message]
            max_tokens = max_tokens or drawn.output_tokens
            asked = drawn.input_tokens if first else None  # of a later turn the history counts too
        else:
            new = (
                [{"role": "user", "content": content}]
                if isinstance(content, str)
                else as_message_list(content)
            )
            max_tokens = max_tokens or prompts.output_tokens()
        number = next(whole.numbers)
        turn = OutgoingTurn(
            [*self.messages, *new], asked, max_tokens, whole.id, number,
            sized=content is None or input_tokens is not None,
            model=whole.model, tenant=whole.tenant,
            after=None if self.after == previous_turn(number) else self.after, tool_s=self._tool_s,
            marker=whole.marked.number, asked=asks_marker,
        )  # fmt: skip
        self._tool_s = None
        record = branch.send(permit, turn, name, headers, True, body)
        branch.turnaround.leave()
        whole.records.append(record)
        self.after = (number,)
        answer = branch.answer(record)
        if record.outcome == OK:
            self.messages += [*new, answer.message]
        return answer

    def tool(self, tool: float | Callable[..., Any], *args: Any, **keywords: Any) -> Any:
        """A tool runs before the next turn: for so many seconds, or as this function. Its time is
        in the record.

        Returns the function's result; None for seconds.
        """
        began = time.monotonic()
        try:
            if callable(tool):
                return tool(*args, **keywords)
            gevent.sleep(tool)
            return None
        finally:
            self._tool_s = (self._tool_s or 0.0) + time.monotonic() - began


class Pending(AsyncResult):  # type: ignore[misc]  # gevent's has no types
    """An answer or a tool's result to come. ``get()`` waits for it."""

    def __init__(self, line: TurnLine) -> None:
        super().__init__()
        self.line = line


class Fork:
    """A branch of a session. Its turns and tools run in their order, beside the session."""

    def __init__(self, whole: _SessionState, line: TurnLine) -> None:
        self._whole, self._line = whole, line
        self._last: Pending | None = None

    @property
    def messages(self) -> list[Message]:
        """Its history, which begins with the session's."""
        return self._line.messages

    def chat(self, content: Content = None, **options: Any) -> Pending:
        """As the session's ``chat``, but it does not wait."""
        return self._begin(lambda: self._line.chat(content, **options))

    def tool(self, tool: float | Callable[..., Any], *args: Any, **keywords: Any) -> Pending:
        """As the session's ``tool``, but it does not wait."""
        return self._begin(lambda: self._line.tool(tool, *args, **keywords))

    def _begin(self, what: Callable[[], Any]) -> Pending:
        before = self._last
        pending = Pending(self._line)

        def run() -> None:
            try:
                if before is not None:
                    before.get()
                pending.set(what())
            except GreenletExit as killed:
                pending.set_exception(StopUser())
                raise killed
            except BaseException as error:  # raised where somebody waits for it
                pending.set_exception(error)

        self._whole.group.spawn(run)
        self._last = pending
        return pending

    def wait(self) -> None:
        """Wait until all its work is done. Raises its error."""
        if self._last is not None:
            self._last.get()


class Session(TurnLine):
    """A session. ``with user.open_session() as session:`` waits at its end for all its branches."""

    def __init__(self, branches: SenderPool, id: str) -> None:
        super().__init__(_SessionState(branches, id), branches.main, [], ())
        self.id = id
        self._forks: list[tuple[Fork, RequestSender]] = []

    @property
    def records(self) -> list[Record]:
        """The records of its turns, in the order in which they ended."""
        return self._whole.records

    def fork(self) -> Fork:
        """A branch whose history begins with the session's present one."""
        branch = self._whole.branches.take()
        fork = Fork(self._whole, TurnLine(self._whole, branch, [*self.messages], self.after))
        self._forks.append((fork, branch))
        return fork

    def gather(self, *pending: Pending) -> list[Any]:
        """Wait for all of these; the next turn comes after them."""
        results = [request.get() for request in pending]
        after = dict.fromkeys(self.after)
        for request in pending:
            after |= dict.fromkeys(request.line.after)
        self.after = tuple(after)
        return results

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                for fork, _ in self._forks:
                    fork.wait()
        finally:
            self._whole.close()
            for _, branch in self._forks:
                self._whole.branches.give_back(branch)


def as_message_list(content: Message | list[Message]) -> list[Message]:
    """One message becomes a list of one."""
    return content if isinstance(content, list) else [content]
