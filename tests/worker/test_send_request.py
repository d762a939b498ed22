"""What a user puts on the wire, and what it does when the server refuses."""

from support import unpatched_locust  # noqa: F401  before anything of Locust

# isort: split
import base64
import json
import time
from argparse import Namespace
from typing import Any

from locust.env import Environment
from locust.exception import StopUser

import pytest
import requests
from gevent import GreenletExit
from msgspec.structs import replace
from requests import Session
from requests.auth import AuthBase
from support.hostile_server import answer, hostile
from support.records import answered, failed

from locust_llm import LLMUser
from locust_llm.client.connection import Target
from locust_llm.client.request_bytes import Request
from locust_llm.client.response_chunks import Response
from locust_llm.gate.gate import GateClosed
from locust_llm.records.outcomes import CUT, OK, RETRIED
from locust_llm.records.record import Record
from locust_llm.records.spans.trace_ids import make_traceparent
from locust_llm.worker import send_request as module
from locust_llm.worker.ab_targets import VariantTarget
from locust_llm.worker.request_to_send import OutgoingTurn
from locust_llm.worker.send_permits import Permit
from locust_llm.worker.session_affinity import Affinity
from locust_llm.worker.worker_context import WorkerContext


class User(LLMUser):
    pass


@pytest.fixture
def user() -> User:
    return User(Environment(user_classes=[User], host="http://server:8000/v1"))


def parts(wire: bytes) -> tuple[str, dict[str, str], bytes]:
    head, _, body = wire.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return first, dict(line.split(": ", 1) for line in lines), body


def test_what_a_plain_request_quotes_of_the_server_is_shown_without_secrets(user: User) -> None:
    key, told = "sk-0123456789abcdef", list[str]()
    user.client.headers["Authorization"] = f"Bearer {key}"
    user.environment.events.request.add_listener(
        lambda exception, **kw: told.append(repr(exception))
    )
    with hostile() as server:
        server.paths["/said"] = lambda asked: [
            answer("", f"500 no {asked.headers['authorization']} \x9b31m" + "x" * 5_000)
        ]
        server.paths["/plain"] = lambda asked: [answer("", 404)]
        server.paths["/fine"] = lambda asked: [answer("", 200)]
        for path in ("/said", "/plain", "/fine"):
            user.client.get(server.url + path)
        with user.client.get(server.url + "/fine", catch_response=True) as response:
            response.failure(f"it said {key}")
    assert told[0].startswith("RequestException('500 Server Error: no Bearer *** xxx")
    assert len(told[0]) < 330
    assert told[1:] == [
        "HTTPError('404 Client Error: OK for url: /plain')", "None",
        "RequestException('it said ***')",
    ]  # fmt: skip


def test_the_bytes_of_a_request(user: User) -> None:
    _, wire, _ = user._branches.main._prepare([b'{"a":1}'], "id-1", None, user.sender.side(None))
    first, headers, body = parts(wire)
    assert first == "POST /v1/chat/completions HTTP/1.1"
    assert (headers["Host"], headers["Content-Length"], body) == ("server:8000", "7", b'{"a":1}')
    assert (headers["X-Request-Id"], headers["Content-Type"]) == ("id-1", "application/json")
    assert headers["Accept-Encoding"] == "identity"


def test_a_request_of_the_candidate_goes_to_its_address_with_its_own_headers(user: User) -> None:
    side = VariantTarget(
        "candidate", "http://other:1", None, (), {"X-Key": "k", "Authorization": "Bearer own"}
    )
    for _ in range(2):
        prepared, wire, _ = user._branches.main._prepare([b"x"], "id", None, side)
        assert prepared.url == f"http://other:1{user.sender.settings.endpoint}"
        headers = parts(wire)[1]
        assert (headers["Host"], headers["X-Key"], headers["Authorization"]) == (
            "other:1",
            "k",
            "Bearer own",
        )
    of_base = parts(user._branches.main._prepare([b"x"], "id", None, user.sender.side(None))[1])[1]
    assert "X-Key" not in of_base
    assert of_base["Host"] != "other:1"


def test_a_remembered_request_is_as_one_made_anew(user: User) -> None:
    for number, body in enumerate((b"one", b"a longer one", "ü".encode())):
        _, remembered, _ = user._branches.main._prepare(
            [body], f"id-{number}", None, user.sender.side(None)
        )
        anew = Session.prepare_request(user.client, user_request(user, body, f"id-{number}"))
        first, headers, sent = parts(remembered)
        assert sent == body
        assert headers == {"Host": "server:8000"} | {
            name: str(value) for name, value in anew.headers.items()
        }
        assert first.split()[1] == anew.path_url


def test_users_that_send_alike_share_what_requests_prepared(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared_for = list[Any]()

    def prepare(session: Any, request: Any) -> Any:
        prepared_for.append(session)
        return real(session, request)

    real = Session.prepare_request
    monkeypatch.setattr(Session, "prepare_request", prepare)
    alike, other = User(user.environment), User(user.environment)
    other.client.headers["X-Team"] = "b"
    for number, one in enumerate((user, alike, other, alike, user, other)):
        main = one._branches.main
        headers = parts(main._prepare([b"x"], f"id-{number}", None, one.sender.side(None))[1])[1]
        assert headers["X-Request-Id"] == f"id-{number}"
        assert headers.get("X-Team") == ("b" if one is other else None)
    assert prepared_for == [user.client, other.client]


def test_a_traceparent_goes_with_each_request_unless_the_user_has_one(user: User) -> None:
    """Whichever way it is prepared, remembered or anew; of a retry it is another one."""

    def sent(
        request_id: str = "id", side: VariantTarget | None = None, **headers: str
    ) -> str | None:
        side = user.sender.side(None) if side is None else side
        given = parts(user._branches.main._prepare([b"x"], request_id, headers, side)[1])[1]
        found = [value for name, value in given.items() if name.lower() == "traceparent"]
        assert len(found) <= 1
        return found[0] if found else None

    assert sent() is sent(A="b") is None  # --no-traceparent, and before there is a run
    user.sender.trace = "4bf92f3577b34da6"
    assert sent() == sent() == sent(A="b") == make_traceparent(user.sender.trace, "id")
    assert sent("id.2") == make_traceparent(user.sender.trace, "id.2") != sent()
    user.sender.trace = "4bf92f3577b34da7"  # the next run
    assert sent() == make_traceparent("4bf92f3577b34da7", "id")
    assert sent(TraceParent="own") == "own"
    assert (
        sent(side=VariantTarget("candidate", "http://other:1", None, (), {"Traceparent": "its"}))
        == "its"
    )
    user.client.headers["TRACEPARENT"] = "mine"
    assert sent() == sent(A="b") == "mine"


def user_request(user: User, body: bytes, request_id: str) -> Any:
    own = {"Content-Type": "application/json", "X-Request-Id": request_id}
    return requests.Request(
        "POST", "http://server:8000/v1/chat/completions", data=body, headers=own
    )


def test_what_changes_in_the_session_is_sent(user: User) -> None:
    def headers(**how: Any) -> dict[str, str]:
        return parts(
            user._branches.main._prepare([b"x"], "id", how.get("headers"), user.sender.side(None))[
                1
            ]
        )[1]

    headers()
    user.client.headers["X-Tenant"] = "a"
    assert headers()["X-Tenant"] == "a"
    user.client.headers["X-Tenant"] = "b"
    assert headers()["X-Tenant"] == "b"
    assert headers(headers={"X-Tenant": "c", "X-Once": "1"})["X-Once"] == "1"
    assert "X-Once" not in headers()
    user.client.cookies.set("session", "s1")
    assert headers()["Cookie"] == "session=s1"
    user.client.cookies.clear()
    assert "Cookie" not in headers()
    user.client.auth = ("me", "secret")
    assert headers()["Authorization"] == "Basic " + base64.b64encode(b"me:secret").decode()

    class Signed(AuthBase):
        def __call__(self, request: Any) -> Any:
            request.headers["X-Signature"] = str(len(request.body))
            return request

    user.client.auth = Signed()
    assert headers()["X-Signature"] == "1"


def test_what_a_turn_asks_for(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model of the row, of the class, of the mix, of the run, in this order; a length, unless
    the answer has a form."""
    sent: list[Request] = []

    def exchange(line: Any, gate: Any, request: Request, *_: Any) -> Record:
        sent.append(request)
        return replace(answered(10), **request.labels)

    monkeypatch.setattr(module, "exchange_request", exchange)
    user.sender.affinity = Affinity(
        {"": VariantTarget("", "http://server:8000", "the run's", ("ignore_eos",))}
    )
    turn = OutgoingTurn([{"role": "user", "content": "x"}], 1, 5, sized=True)

    def asked(own: str | None = None, **fields: Any) -> tuple[str, str, bool, bool]:
        user.model = own
        record = user._branches.main.send(PERMIT, turn._replace(**fields), None, None, False, {})
        body = json.loads(sent[-1].data.partition(b"\r\n\r\n")[2])
        return record.model, body["model"], body.get("ignore_eos", False), sent[-1].keep_text

    assert asked() == ("the run's", "the run's", True, False)
    assert asked(model="mixed") == ("mixed", "mixed", True, False)
    assert asked("the class's", model="mixed") == ("the class's", "the class's", True, False)
    assert asked("the class's", model="mixed", body={"model": "the row's"}) == (
        "the row's",
        "the row's",
        True,
        False,
    )
    schema = {"response_format": {"type": "json_object"}}
    assert asked(body=schema) == ("the run's", "the run's", False, True)
    assert asked(body=schema | {"ignore_eos": True}) == ("the run's", "the run's", True, True)


def test_a_user_without_a_parsed_command_line_is_possible(user: User) -> None:
    assert user.environment.parsed_options is None or isinstance(
        user.environment.parsed_options, Namespace
    )
    assert user.sender.settings.endpoint == "/v1/chat/completions"


# -- attempts, with an exchange that answers as it is told -----------------------------------------

PERMIT = Permit("profiling")
BUSY = {"status": 429, "error": "HTTP 429: slow down"}


class Attempts:
    """Answers are records, or what an exchange raises; ``waits`` are how long the user waited
    between them."""

    def __init__(
        self, user: User, monkeypatch: pytest.MonkeyPatch, *answers: Any, **settings: Any
    ) -> None:
        self.kept: list[Record] = []
        self.waits: list[float] = []
        self.shown: list[Any] = []
        self.asked: list[tuple[int, float | None]] = []
        self.user, self.answers = user, list(answers)
        user.sender = WorkerContext(
            user.environment, replace(user.sender.settings, **settings), (self.kept.append,)
        )
        user.sender.wait_until = lambda at: self.waits.append(at - time.monotonic())  # type: ignore[method-assign]
        monkeypatch.setattr(module, "exchange_request", self.exchange)
        user.environment.events.request.add_listener(
            lambda exception, **_: self.shown.append(str(exception))
        )

    def exchange(self, line: Any, gate: Any, request: Request, *_: Any) -> Record:
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            if (cut := getattr(answer, "record", None)) is not None:
                answer.record = replace(cut, **request.labels)  # type: ignore[attr-defined]
            raise answer
        due_at = answer.asked_at if request.due_at is None else request.due_at
        return replace(answer, due_at=due_at, **request.labels)

    def attempt(
        self, number: int, due_at: float | None
    ) -> tuple[Request, requests.PreparedRequest]:
        self.asked.append((number, due_at))
        prepared = requests.Request(
            "POST", "http://server:8000/", headers={"Authorization": "Bearer sk-secret"}
        ).prepare()
        labels = {"id": f"r{number}", "attempt": number, "name": "chat"}
        return Request(target=Target("", 0), data=b"", labels=labels, due_at=due_at), prepared

    def go(self, permit: Permit = PERMIT) -> Record:
        return self.user._branches.main._attempts(permit, self.attempt)

    @property
    def outcomes(self) -> list[tuple[str, str, int]]:
        return [(record.id, record.outcome, record.attempt) for record in self.kept]


def test_by_default_nothing_is_tried_again(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = Attempts(user, monkeypatch, failed("rate_limited", **BUSY))
    assert attempts.go().outcome == "rate_limited"
    assert (attempts.outcomes, attempts.waits) == ([("r1", "rate_limited", 1)], [])
    assert attempts.shown == ["rate_limited: HTTP 429: slow down"]


def test_each_attempt_has_a_record_and_the_latency_from_due_spans_them(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = failed("rate_limited", asked_at=10.0, sent_at=10.0, retry_after_s=3.0, **BUSY)
    again = failed("unavailable", asked_at=13.0, sent_at=13.0, status=503, error="HTTP 503")
    good = answered(200, asked_at=14.0, sent_at=14.0)
    attempts = Attempts(user, monkeypatch, busy, again, good, max_retries=2)
    record = attempts.go()
    assert attempts.outcomes == [("r1", RETRIED, 1), ("r2", RETRIED, 2), ("r3", OK, 3)]
    assert attempts.asked == [(1, None), (2, 10.0), (3, 10.0)]
    assert record.ttft_from_due_s == pytest.approx(4.2)
    assert record.ttft_s == 0.2
    assert attempts.waits[0] == pytest.approx(3.0, abs=0.1)  # what the server had asked for
    assert 0.4 <= attempts.waits[1] <= 1.0
    assert attempts.shown == ["None"]  # one request, and it succeeded
    assert user.environment.stats.get("chat", RETRIED).num_requests == 2


def test_the_last_attempt_that_may_be_made_is_a_failure_like_any_other(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = failed("rate_limited", retry_after_s=0.0, **BUSY)
    attempts = Attempts(user, monkeypatch, busy, busy, max_retries=1)
    assert attempts.go().outcome == "rate_limited"
    assert attempts.outcomes == [("r1", RETRIED, 1), ("r2", "rate_limited", 2)]


@pytest.mark.parametrize("outcome", ["http_status", "refused", "reset", "stream_error", "timeout"])
def test_only_who_was_refused_before_anything_was_made_is_tried_again(
    user: User, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    attempts = Attempts(user, monkeypatch, failed(outcome), max_retries=5)
    assert attempts.go().outcome == outcome
    assert attempts.waits == []


def test_a_server_that_asks_for_an_hour_is_not_asked_again(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = Attempts(
        user, monkeypatch, failed("rate_limited", retry_after_s=3600.0, **BUSY), max_retries=5
    )
    assert attempts.go().outcome == "rate_limited"
    assert attempts.waits == []


def test_at_the_end_of_the_run_the_attempt_before_was_the_last(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = Attempts(
        user, monkeypatch, failed("rate_limited", **BUSY), GateClosed(), max_retries=5
    )
    assert attempts.go().outcome == "rate_limited"
    assert attempts.outcomes == [("r1", "rate_limited", 1)]
    assert user.sender.turned_away == 0
    first = Attempts(user, monkeypatch, GateClosed(), max_retries=5)
    with pytest.raises(StopUser):
        first.go()
    assert (first.kept, user.sender.turned_away) == ([], 1)


def test_killed_between_two_attempts_or_in_the_second(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = Attempts(
        user, monkeypatch, failed("rate_limited", **BUSY), GreenletExit(), max_retries=5
    )
    with pytest.raises(GreenletExit):
        attempts.go()
    assert attempts.outcomes == [("r1", "rate_limited", 1)]
    sent = GreenletExit()
    sent.record = answered(200, outcome=CUT)  # type: ignore[attr-defined]
    attempts = Attempts(user, monkeypatch, failed("rate_limited", **BUSY), sent, max_retries=5)
    with pytest.raises(GreenletExit):
        attempts.go()
    assert attempts.outcomes == [("r1", RETRIED, 1), ("r2", CUT, 2)]
    assert attempts.shown[-1] == "cut"


def test_killed_before_the_first_was_sent_the_permit_goes_back(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    back: list[Permit] = []
    attempts = Attempts(user, monkeypatch, GreenletExit())
    user.sender.permits.put_back = back.append  # type: ignore[method-assign]
    with pytest.raises(GreenletExit):
        attempts.go()
    assert (attempts.kept, back) == ([], [PERMIT])


def test_who_is_not_due_yet_or_goes_through_a_gate_lets_the_loop_turn_first(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed meanwhile it gives its permit back; in a loop without a gate it does not wait."""
    branch, permits, gate = user._branches.main, user.sender.permits, user.sender.gate

    def killed_here() -> None:
        raise GreenletExit

    monkeypatch.setattr(module.can_wait, "take", killed_here)
    gate.set_limit(None)
    permits.grant("profiling", 2)
    assert branch.permit() == Permit("profiling")
    gate.set_limit(1)
    with pytest.raises(GreenletExit):
        branch.permit()
    gate.set_limit(None)
    assert branch.permit() == Permit("profiling")
    soon, later = time.monotonic(), time.monotonic() + 100
    permits.arrive([PERMIT._replace(due_at=at) for at in (soon, later)])
    assert branch.permit().due_at == soon
    with pytest.raises(GreenletExit):
        branch.permit()
    monkeypatch.undo()
    assert branch.permit().due_at == later


def test_no_secret_is_in_a_message_a_name_or_a_record(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = "HTTP 401: the key sk-secret is not known; you sent Bearer sk-secret"
    attempts = Attempts(user, monkeypatch, failed("http_status", error=message))
    record = attempts.go()
    assert (
        record.error
        == attempts.kept[0].error
        == "HTTP 401: the key *** is not known; you sent Bearer ***"
    )
    assert "secret" not in attempts.shown[0]


def test_what_is_sent_back_is_in_no_message_and_the_backend_is_a_line(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the value that was sent nor the one that came, whatever the header is called."""
    message = "HTTP 500: session pod-seventeen is now pod-eighteen"
    attempts = Attempts(
        user,
        monkeypatch,
        failed("http_status", error=message),
        echo_header="x-route",
        backend_header="x-at",
    )
    branch = user._branches.main
    user.sender.affinity = Affinity(
        {"": VariantTarget("", "http://server:8000", None, ())}, (), "x-route"
    )
    branch._session, branch.line.stream = "one", Response(0)
    head = (
        b"HTTP/1.1 500 No\r\nX-Route: pod-eighteen\r\nX-At: three\x9b31m of "
        b"pod-eighteen\r\nContent-Length: 0\r\n\r\n"
    )
    branch.line.stream.append_read(1, 0, head)
    branch.line.stream.decode_pending()
    sent = requests.Request(
        "POST", "http://server:8000/", headers={"X-Route": "pod-seventeen"}
    ).prepare()
    monkeypatch.setattr(
        attempts, "attempt", lambda number, due_at: (attempts_request(number), sent)
    )
    record = attempts.go()
    assert record.error == attempts.kept[0].error == "HTTP 500: session *** is now ***"
    assert record.backend == "three of ***"
    assert user.sender.side(None, "one").headers == {"x-route": "pod-eighteen"}


def attempts_request(number: int) -> Request:
    return Request(
        target=Target("", 0),
        data=b"",
        labels={"id": f"r{number}", "attempt": number, "name": "chat"},
    )


def test_each_address_has_its_connection_and_its_bytes(user: User) -> None:
    branch = user._branches.main
    a, b = (VariantTarget("", f"http://{host}:1", None, ()) for host in "ab")
    prepared = [branch._prepare([b"x"], "id", None, side)[0] for side in (a, b, a, b)]
    # made by requests once for each
    assert prepared[0] is prepared[2] is not prepared[1] is prepared[3]
    lines = [branch._line(side.address) for side in (a, b, a)]
    assert lines[0] is lines[2] is not lines[1]


def test_after_a_failure_a_user_of_a_closed_loop_rests(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until a second after it had asked; who waited longer for its failure does not."""
    now = time.monotonic()
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    for outcome, asked_at, rests in (("refused", now, True), ("timeout", now - 2, False)):
        attempts = Attempts(user, monkeypatch, failed(outcome, sent_at=None, asked_at=asked_at))
        user._branches.main._rests_until = 0.0
        attempts.go()
        user.sender.permits.grant("profiling", 1)
        user._branches.main.permit()
        assert attempts.waits == ([1.0] if rests else [])
    good = Attempts(user, monkeypatch, answered(200, asked_at=now))
    user._branches.main._rests_until = 0.0
    good.go()
    assert user._branches.main._rests_until == 0.0
    scheduled = Attempts(
        user, monkeypatch, failed("refused", sent_at=None, asked_at=now), request_rate=5.0
    )
    scheduled.go(PERMIT._replace(due_at=now))
    assert user._branches.main._rests_until == 0.0


@pytest.mark.parametrize("gated", [True, False])
def test_rows_of_locust_are_those_of_the_report_and_leave_aggregated_alone(
    gated: bool, user: User
) -> None:
    """An answer, and a request that failed after its first chunk: one of two is in TTFT and ITL,
    both waited at the gate. Where there is no gate, there is no such row."""
    user.sender.gate.set_limit(3 if gated else None)
    prepared = user._branches.main._prepare_with_requests(b"{}", "id", None, user.sender.side(None))
    for record in (
        answered(123.4, 135.8, asked_at=9.5, admitted_at=10.0),
        failed(
            "truncated",
            asked_at=9.0,
            admitted_at=10.0,
            chunk_us=(700_000, 900_000),
            output_tokens=2,
        ),
    ):
        user._branches.main._finish(record, prepared)
    stats = user.environment.stats
    rows = {(name, method): entry for (name, method), entry in stats.entries.items()}
    counts = {method: entry.num_requests for (_, method), entry in rows.items()}
    expected = {"TTFT": 1, "ITL": 1, **({"gate wait": 2} if gated else {})}
    assert {row: count for row, count in counts.items() if row != "POST"} == expected
    assert [rows["chat", row].num_failures for row in expected] == [0] * len(expected)
    assert rows["chat", "TTFT"].max_response_time == pytest.approx(123.4)
    assert rows["chat", "ITL"].max_response_time == pytest.approx(12.4)
    assert stats.total.num_requests == 0  # nobody but the request event counts there


# -- the start of a closed loop --------------------------------------------------------------------


def test_a_user_waits_for_its_start_in_a_phase(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    sender = user.sender
    sender.permits.grant("profiling", 3)
    sender.starts.spread("profiling", 1000.0, 1000.0)
    waited: list[float] = []
    monkeypatch.setattr(sender, "wait_until", waited.append)
    began = time.monotonic()
    assert user._branches.main.permit() == Permit("profiling")
    waited.clear()
    User(user.environment)._branches.main.permit()
    assert waited[-1] == pytest.approx(began + 1000.0, abs=10.0)


def test_the_permit_of_a_user_that_ends_before_its_start_goes_back(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = user.sender
    sender.permits.grant("profiling", 2)
    sender.starts.spread("profiling", 1000.0, 1000.0)
    began = time.monotonic()

    def killed(at: float) -> None:
        if at > began + 500.0:
            raise GreenletExit

    monkeypatch.setattr(sender, "wait_until", killed)
    user._branches.main.permit()
    with pytest.raises(GreenletExit):
        User(user.environment)._branches.main.permit()
    assert sender.permits.release_all() == 1


def test_a_run_that_ends_before_a_users_start_ends_the_user(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = user.sender
    sender.permits.grant("profiling", 2)
    sender.starts.spread("profiling", 1000.0, 1000.0)
    began = time.monotonic()

    def closed(at: float) -> None:
        if at > began + 500.0:
            raise GateClosed

    monkeypatch.setattr(sender, "wait_until", closed)
    user._branches.main.permit()
    with pytest.raises(StopUser):
        User(user.environment)._branches.main.permit()
