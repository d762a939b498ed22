"""Trees of turns: who waits for whom, whose history goes on, what a failure takes with it; from
files and from code."""

import time
from typing import Any

from support import unpatched_locust  # noqa: F401  before anything of Locust

# isort: split
from locust.env import Environment
from locust.exception import StopUser

import gevent
import pytest
from msgspec.structs import replace
from support.records import answered, failed

from locust_llm import LLMUser
from locust_llm.client.request_bytes import Request
from locust_llm.records.outcomes import OK
from locust_llm.records.record import Record
from locust_llm.worker import send_request as module
from locust_llm.worker.send_permits import Permit
from locust_llm.worker.session_turns import SessionTree
from locust_llm.workload.conversation import ConversationSource
from locust_llm.workload.dataset_formats import DatasetSession
from locust_llm.workload.dataset_formats import Turn as FileTurn
from locust_llm.workload.prompt_length_model import PromptLengthModel
from locust_llm.workload.synthetic_prompts import Prompts

TAKES_S = {"a": 0.02, "b": 0.2, "c": 0.03}


class User(LLMUser):
    """Its requests take as long as their last message says, and are answered with that in
    capitals."""

    sent: list[tuple[str, list[str]]]
    fails: str = ""


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> User:
    user = User(Environment(user_classes=[User], host="http://server:8000/v1"))
    user.sent = []
    user.sender.prompts = Prompts(PromptLengthModel(), seed=1)
    user.sender.sessions = ConversationSource(user.sender.prompts, seed=1)
    user.sender.permits.grant("profiling", 100)

    def exchange(line: Any, gate: Any, request: Request, *_: Any) -> Record:
        said = [message["content"] for message in line.sends]
        user.sent.append((said[-1], said))
        began = time.monotonic()
        gevent.sleep(TAKES_S.get(said[-1], 0.001))
        line.says = said[-1].upper()
        record = failed("reset") if said[-1] == user.fails else answered(1)
        due_at = began if request.due_at is None else request.due_at
        return replace(
            record,
            due_at=due_at,
            sent_at=began,
            asked_at=began,
            closed_at=time.monotonic(),
            **request.labels,
        )

    def body(kind: str, model: Any, messages: Any, *_: Any, **fields: Any) -> list[bytes]:
        sending.append(messages)
        return [b"{}"]

    sending: list[Any] = []
    real = module.RequestSender.send

    def send(self: module.RequestSender, permit: Permit, turn: Any, *rest: Any) -> Record:
        self.line.sends = turn.messages  # type: ignore[attr-defined]
        return real(self, permit, turn, *rest)

    def answer(self: module.RequestSender, record: Record) -> Any:
        found = module.build_answer(record, [], {"content": self.line.says})  # type: ignore[attr-defined]
        return found

    monkeypatch.setattr(module, "encode_request_pieces", body)
    monkeypatch.setattr(module, "exchange_request", exchange)
    monkeypatch.setattr(module.RequestSender, "send", send)
    monkeypatch.setattr(module.RequestSender, "answer", answer)
    monkeypatch.setattr(module.RequestSender, "text", property(lambda self: self.line.says))
    return user


def turn(text: str, **fields: Any) -> FileTurn:
    return FileTurn(messages=[{"role": "user", "content": text}], row=1, **fields)


DIAMOND = (
    turn("a"),
    turn("b", after=(0,), delay_s=0.02),
    turn("c", after=(0,), delay_s=0.01, tool=True),
    turn("d", after=(1, 2), delay_s=0.02),
)


def sent(user: User, *turns: FileTurn, permit: Permit | None = None) -> dict[int, Record]:
    conversation = user.sender.sessions.begin(DatasetSession(id="s", turns=turns, row=1))
    tree = SessionTree(
        user._branches, conversation, None, name=None, headers=None, keep_text=False, body={}
    )
    tree.send(permit or user._branches.main.permit())
    return {record.turn: record for record in tree.records}


def test_children_go_side_by_side_after_their_parent_and_a_join_after_the_last(user: User) -> None:
    found = sent(user, *DIAMOND)
    a, b, c, d = (found[number] for number in range(4))
    assert b.asked_at - a.closed_at >= 0.02
    assert c.asked_at - a.closed_at >= 0.01
    assert c.closed_at < b.closed_at  # they were on their way together
    assert d.asked_at - b.closed_at >= 0.02
    assert [record.after for record in (a, b, c, d)] == [None, None, (0,), (1, 2)]
    assert [record.tool_s for record in (a, b, c, d)] == [None, None, 0.01, None]
    assert dict(user.sent)["c"] == ["a", "A", "c"]
    assert dict(user.sent)["d"] == ["a", "A", "b", "B", "d"]  # the first one it waits for goes on


def test_of_a_fixed_schedule_a_turn_is_due_after_its_wait_or_at_its_time(user: User) -> None:
    now = time.monotonic()
    found = sent(user, *DIAMOND, permit=Permit("profiling", now, item=b"x"))
    assert found[3].due_at == found[1].closed_at + 0.02
    user.sender.settings = replace(user.sender.settings, replay_speedup=2.0)
    timed = (turn("a", at_s=100.0), turn("b", at_s=101.0), turn("c", at_s=103.0, after=(0,)))
    found = sent(user, *timed, permit=Permit("profiling", now, item=b"x"))
    assert [round(found[number].due_at - now, 6) for number in range(3)] == [0.0, 0.5, 1.5]


def test_what_waits_for_a_turn_that_failed_is_not_sent_and_counted(user: User) -> None:
    user.fails = "b"
    found = sent(user, *DIAMOND, turn("e", after=(2,)), turn("f", after=(3,)))
    assert sorted(found) == [0, 1, 2, 4]
    assert {number: record.unsent for number, record in found.items()} == {0: 0, 1: 2, 2: 0, 4: 0}


def test_two_roots_begin_together_and_a_line_is_what_it_was(user: User) -> None:
    found = sent(user, turn("b"), turn("c", after=()), turn("d", after=(0,)))
    assert found[1].asked_at < found[0].closed_at <= found[2].asked_at
    assert dict(user.sent)["c"] == ["c"]
    found = sent(user, turn("x"), turn("y"), turn("z"))
    assert [record.after for record in found.values()] == [None, None, None]
    assert user.sent[-1][1] == ["x", "X", "y", "Y", "z"]


def test_the_end_of_the_run_ends_all_branches(user: User) -> None:
    user.sender.permits.close()
    with pytest.raises(StopUser):
        sent(user, *DIAMOND, permit=Permit("profiling"))
    job = gevent.spawn(
        sent, user, *DIAMOND, permit=Permit("profiling", time.monotonic(), item=b"x")
    )
    gevent.sleep(0.05)
    job.kill()
    asked = len(user.sent)
    gevent.sleep(0.1)
    assert len(user.sent) == asked


def test_code_forks_gathers_and_uses_tools(user: User) -> None:
    with user.open_session() as s:
        a = s.chat("a")
        left, right = s.fork(), s.fork()
        b, c = s.gather(left.chat("b"), right.chat("c"))
        assert s.tool(lambda x: x + 1, 1) == 2
        s.tool(0.01)
        d = s.chat([{"role": "tool", "content": "d"}])
        late = right.chat("e")
    assert [answer.turn for answer in (a, b, c, d, late.get())] == [0, 1, 2, 3, 4]
    assert [answer.after for answer in (a, b, c, d, late.get())] == [
        None,
        None,
        (0,),
        (0, 1, 2),
        (2,),
    ]
    assert d.tool_s is not None
    assert d.tool_s >= 0.01
    assert dict(user.sent)["d"] == ["a", "A", "d"]
    assert dict(user.sent)["e"] == ["a", "A", "c", "C", "e"]
    assert {record.session for record in s.records} == {s.id}
    assert [record.outcome for record in s.records] == [OK] * 5


def test_what_goes_wrong_in_a_branch_is_raised_where_one_waits(user: User) -> None:
    def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), user.open_session() as s:
        s.fork().tool(broken)
    user.fails = "b"
    with user.open_session() as s:
        s.chat("a")
        assert s.chat("b").outcome == "reset"
        s.chat("c")
    assert dict(user.sent)["c"] == ["a", "A", "c"]
