"""LLMUser: a Locust user whose requests are streamed answers of a model; the class to extend."""

import logging
from collections.abc import Callable
from itertools import count
from typing import Any, ClassVar

from locust import HttpUser
from locust.env import Environment
from locust.exception import StopUser
from locust.user.task import LOCUST_STATE_RUNNING, LOCUST_STATE_WAITING

import msgspec

from locust_llm.client.chat_answer import Answer
from locust_llm.client.proxy_choice import session_proxies
from locust_llm.client.requests_bridge import PlainRequestEvent, keep_headers_on_server
from locust_llm.client.tls_settings import find_client_certificate, find_trusted_certificates
from locust_llm.gate.gate import GateClosed
from locust_llm.locust_adapter.request_statistics import RequestCancelled, RequestCut, RequestFailed  # noqa: F401  for locustfiles
from locust_llm.records.record import Record
from locust_llm.wire.worker_messages import RequestsReturned
from locust_llm.worker.request_to_send import OutgoingTurn
from locust_llm.worker.send_permits import Permit
from locust_llm.worker.send_request import SenderPool
from locust_llm.worker.session_api import Session
from locust_llm.worker.session_turns import SessionTree
from locust_llm.worker.user_turnaround import is_paced_wait
from locust_llm.worker.worker_context import WorkerContext, get_worker_context
from locust_llm.workload.conversation import Conversation
from locust_llm.workload.dataset_formats import DatasetSession
from locust_llm.workload.images_and_audio import MediaError
from locust_llm.workload.marked_session import MarkedSession
from locust_llm.workload.synthetic_prompts import DrawnPrompt

logger = logging.getLogger("locust_llm")


class LLMUser(HttpUser):
    """A Locust user whose tasks call ``chat()`` or ``session()``; ``self.client`` remains Locust's,
    for plain HTTP."""

    abstract = True
    model: str | None = None
    """The model of this user class, instead of ``--model`` or ``--model-mix``."""
    tenant: str | None = None
    """The tenant of this user class, instead of ``--tenant-mix``."""
    _number: ClassVar[int] = 0

    def __init__(self, environment: Environment) -> None:
        self.sender: WorkerContext = get_worker_context(environment)
        self.sender.keeps_address(type(self).host, f"the user class {type(self).__name__}")
        self.host = self.sender.address or self.host
        super().__init__(environment)
        LLMUser._number += 1
        self.number = LLMUser._number
        self.numbers = count(1)
        """The numbers of its requests."""
        self.client.headers.update(
            {
                "Accept-Encoding": "identity",
                "Accept": "text/event-stream, application/json",
                **self.sender.headers,
            }
        )
        keep_headers_on_server(self.client, self.sender.headers, lambda: self.sender.address)
        self.client.request_event = PlainRequestEvent(
            environment.events.request, self.client.headers, self.sender.headers
        )
        self.client.verify = (
            find_trusted_certificates() if not self.sender.settings.insecure else False
        )
        self.client.cert = find_client_certificate()
        self.client.base_url = self.client.base_url.partition("?")[0]
        self.client.proxies = session_proxies(self.client.base_url)
        self._branches = SenderPool(self)
        self._measure_waits()
        # of a class that extends this one, and need not call that of its base, as in Locust
        own = self.on_stop
        self.on_stop = lambda: self._leave(own)  # type: ignore[method-assign]

    def chat(
        self,
        messages: str | list[dict[str, Any]] | None = None,
        *,
        max_tokens: int | None = None,
        input_tokens: int | None = None,
        name: str | None = None,
        session: str = "",
        headers: dict[str, str] | None = None,
        keep_text: bool = True,
        **body: Any,
    ) -> Answer:
        """Send one chat completion through the prefill gate, and wait for its end.

        Args:
            messages: a prompt, or a list of messages; None for a synthetic prompt.
            max_tokens: maximum length of the answer in tokens; None for the output length of the
            command line.
            input_tokens: length of the synthetic prompt in tokens; None for that of the command
            line. With a prompt of
                your own: its intended length, for the report. With either, the answer gets exactly
                ``max_tokens`` tokens where the server allows it (``ignore_eos`` or ``min_tokens``).
            name: the row in Locust's tables and the report; None for the path of the endpoint.
            session: id of the session, for the record and ``--session-header``; of a
            ``--model-mix`` it keeps its model.
            headers: further headers of this request.
            keep_text: keep the answer for its ``message``; False spares the memory of long ones.
            body: further fields of the request's body, such as ``temperature=0`` or
            ``tools=[...]``.

        Returns:
            The record of the request, also of a failed one, with the assistant's message.

        Raises:
            StopUser: the run is ending.
        """
        self._needs_no_isolation("chat()")
        branch = self._branches.main
        branch.turnaround.enter()
        permit = branch.permit()
        prompts, asked = self.sender.prompts, input_tokens
        drawn = None
        marked = self.sender.marked_session(session)
        asks_marker = False
        if messages is None:
            drawn, asks_marker = self._draw(marked, input_tokens)
            system = prompts.system
            messages = [*([system] if system else ()), *(field.message for field in drawn)]
            asked = sum(field.input_tokens for field in drawn)
        elif isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        if max_tokens is None:
            max_tokens = prompts.output_tokens() if drawn is None else drawn[0].output_tokens
        model = self.sender.sessions.model(session)
        tenant = self.tenant or self.sender.tenants.of(self.number, session)
        turn = OutgoingTurn(
            messages,
            asked,
            max_tokens,
            session,
            sized=asked is not None,
            model=model,
            tenant=tenant,
            marker=marked.number,
            asked=asks_marker,
        )
        record = branch.send(permit, turn, name, headers, keep_text, body)
        branch.turnaround.leave()
        return branch.answer(record, keep_text=keep_text)

    def _draw(
        self, marked: MarkedSession, input_tokens: int | None
    ) -> tuple[list[DrawnPrompt], bool]:
        """(synthetic prompts of one request, whether they ask for the session's marker)."""
        prompts = self.sender.prompts
        if input_tokens is None and not marked.marks:
            return prompts.batch(), False
        drawn, asks_marker = marked.draw(
            lambda endings: (
                prompts.draw(endings=endings)
                if input_tokens is None
                else prompts.drawn(input_tokens, endings)
            ),
            first=True,
        )
        return [drawn], asks_marker

    def session(
        self,
        *,
        name: str | None = None,
        headers: dict[str, str] | None = None,
        keep_text: bool = False,
        **body: Any,
    ) -> list[Record]:
        """Send one session of the dataset or of synthetic prompts, turn by turn, as the command
        line asks for.

        Most sessions have one turn. With more, the history grows by the answers; what waits for a
        turn that failed is not sent.

        Args:
            name: the row in Locust's tables and the report; None for the path of the endpoint.
            headers: further headers of each request.
            keep_text: keep the last answer in ``self.text``.
            body: further fields of each request's body.

        Returns:
            The records of its turns in the order in which they ended, failed ones too.

        Raises:
            StopUser: the run is ending.
        """
        sender = self.sender
        turnaround = self._branches.main.turnaround
        turnaround.enter()
        permit, item, decoded, conversation = self._begin()
        tree = SessionTree(
            self._branches,
            conversation,
            decoded,
            name=name,
            headers=headers,
            keep_text=keep_text,
            body=body,
        )
        try:
            tree.send(permit)
        except MediaError as wrong:  # of what the controller could read: the run ends
            sender.permits.put_back(permit)
            sender.failure = str(wrong)
            raise StopUser from None
        finally:
            sender.session_ended(
                permit, conversation.left, dealt=item is not None or sender.counts_sessions
            )
        turnaround.leave()
        return tree.records

    def _begin(self) -> tuple[Permit, bytes | None, DatasetSession | None, Conversation]:
        """The next session, with the permit of its first turn.

        While one tenant is alone, the others' arrivals are drawn and not sent; the others' users
        wait. So the tenant's requests have the same times and prompts as beside the others.
        """
        sender = self.sender
        permit = self._branches.main.permit()
        while True:
            own = self.tenant or sender.tenants.of(self.number)
            block = sender.block(permit.phase)
            alone = sender.tenants.alone(block)
            # of a closed loop, whose users are the tenants'
            if alone and permit.due_at is None and own != alone:
                sender.permits.put_back(permit)
                self._branches.main.turnaround.forget()
                sender.tenants.wait(block)
                permit = self._branches.main.permit()
                continue
            try:
                item = permit.item if permit.item is not None else sender.item(permit.phase)
            except GateClosed:
                sender.permits.put_back(permit)
                raise StopUser from None
            decoded = None if item is None else msgspec.msgpack.decode(item, type=DatasetSession)
            conversation = sender.sessions.begin(decoded)
            conversation.tenant = (
                self.tenant or (decoded.tenant if decoded is not None else "") or own
            )
            if alone in ("", conversation.tenant):
                return permit, item, decoded, conversation
            conversation.next()
            sender.session_ended(permit, 0, dealt=item is not None or sender.counts_sessions)
            sender.send(RequestsReturned(permit.phase, 1))
            permit = self._branches.main.permit()

    def _needs_no_isolation(self, what: str) -> None:
        """Raises StopUser and ends the run where only some of the requests may be sent."""
        if self.sender.settings.isolate:
            self.sender.failure = (
                f"--isolate needs tasks that call session(), but {type(self).__name__} calls {what}"
            )
            raise StopUser

    def open_session(self) -> Session:
        """A session that this code leads: ``with self.open_session() as s:``, and in it
        ``s.chat()``, ``s.tool()``, ``s.fork()`` and ``s.gather()``. It counts for
        ``--num-sessions``."""
        self._needs_no_isolation("open_session()")
        return Session(self._branches, f"{self.sender.worker}-{self.number}-s{next(self.numbers)}")

    def _measure_waits(self) -> None:
        """Note which wait between two tasks is asked for: with too little CPU it lasts longer."""
        asked: Callable[[], float] | None = self.wait_time
        if asked is None:  # the waits of its task sets
            return
        turnaround = self._branches.main.turnaround
        is_paced = is_paced_wait(asked)

        def ask_wait() -> float:
            seconds = asked()
            turnaround.ask_wait(seconds, is_paced=is_paced)
            return seconds

        self.wait_time = ask_wait  # type: ignore[method-assign]

    @property
    def _state(self) -> Any:
        """As Locust's. Its changes show when a wait between two tasks begins and ends."""
        return self.__dict__.get("_state", False)

    @_state.setter
    def _state(self, state: Any) -> None:
        self.__dict__["_state"] = state
        if state == LOCUST_STATE_WAITING:
            self._branches.main.turnaround.begin_wait()
        elif state == LOCUST_STATE_RUNNING:
            self._branches.main.turnaround.end_wait()

    @property
    def text(self) -> str:
        """The text of the last answer, where it was kept."""
        return self._branches.main.text

    def stop(self, force: bool = False) -> bool:
        """As Locust's. A user that waits for a permit goes at once: with fewer users the next load
        can begin."""
        stopped: bool = super().stop(force)
        if not stopped:
            self.sender.permits.dismiss(self.number)
        return stopped

    def _leave(self, on_stop: Callable[[], None]) -> None:
        """Call ``on_stop``, and end the user."""
        try:
            on_stop()
        finally:
            self._branches.close()
            self.sender.permits.leave(self.number)
            self.sender.tenants.leave(self.number)
