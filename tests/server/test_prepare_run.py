"""The address of a run: requests go to the server that was checked at the start, and the key with
them."""

import logging
from typing import Any

from locust.env import Environment

import pytest
from msgspec.structs import replace
from support.tiny_server import tiny_server

from locust_llm import LLMUser
from locust_llm.server.prepare_run import choose_run_address, find_locustfile_host

HOME = "http://home:8000"
KEY = "sk-0123456789abcdef"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> tuple[type[LLMUser], Environment]:
    """A class, and the environment of a run whose order has come."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    kind = type("Kind", (LLMUser,), {})
    environment = Environment(user_classes=[kind], host=HOME)
    user = kind(environment)
    user.sender.settings = replace(user.sender.settings, host=HOME)
    return kind, environment


def where(user: LLMUser) -> str:
    prepared, wire, _ = user._branches.main._prepare([b"{}"], "id", None, user.sender.side(None))
    assert f"Host: {(prepared.url or '').split('/')[2]}\r\n".encode() in wire
    return (prepared.url or "").removesuffix("/v1/chat/completions")


def test_a_host_that_is_set_later_is_not_followed(
    made: tuple[type[LLMUser], Environment], caplog: pytest.LogCaptureFixture
) -> None:
    kind, environment = made
    early = kind(environment)
    assert where(early) == HOME
    assert caplog.records == []
    kind.host = "http://elsewhere:1"  # as Locust's POST /user does
    # as Locust's own POST /swarm does, and its message to a worker
    environment.host = "http://elsewhere:2"
    late = kind(environment)
    late.host = "http://elsewhere:3"
    assert {where(early), where(late), where(kind(environment))} == {HOME}
    assert late.client.base_url == HOME
    (line,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert line.getMessage() == (
        "the user class Kind has the host http://elsewhere:1, which is ignored: the requests of "
        "this run go to http://home:8000, the address that was checked at the start"
    )


def test_the_next_run_may_go_elsewhere(made: tuple[type[LLMUser], Environment]) -> None:
    kind, environment = made
    user = kind(environment)
    assert where(user) == HOME
    user.sender.settings = replace(user.sender.settings, host="http://next")
    assert where(user) == "http://next"


def test_a_host_with_v1_is_the_same_one(
    made: tuple[type[LLMUser], Environment], caplog: pytest.LogCaptureFixture
) -> None:
    kind, environment = made
    kind.host = "home:8000/v1/"
    assert where(kind(environment)) == HOME
    assert caplog.records == []


def test_the_key_goes_to_no_other_host_with_plain_requests() -> None:
    """Whatever base URL, or URL, the requests of a locustfile have."""
    with tiny_server() as here, tiny_server() as elsewhere:
        user = type("Kind", (LLMUser,), {})(Environment(user_classes=[], host=here.url))
        user.sender._headers = 0, {"Authorization": f"Bearer {KEY}", "X-Api-Key": KEY}
        user = type(user)(user.environment)
        user.client.get("/v1/models")
        user.client.get(elsewhere.url + "/v1/models")
        user.client.base_url = elsewhere.url
        user.client.get("/v1/models")
        assert [asked.headers["x-api-key"] for asked in here.asked] == [KEY]
        assert len(elsewhere.asked) == 2
        assert KEY not in str(elsewhere.asked)


def test_the_host_of_the_locustfile_is_that_of_all_its_classes_or_none() -> None:
    every: Any = type("Every", (), {"host": None})
    ours: Any = type("Ours", (every,), {})
    assert find_locustfile_host(ours, every) is None
    plain: Any = type("Plain", (every,), {"host": "http://one"})
    assert find_locustfile_host(ours, every) is None  # of a server that is not asked for chats
    first: Any = type("First", (ours,), {"host": "http://one"})
    type("Second", (first,), {})
    assert find_locustfile_host(ours, every) == "http://one"
    plain.host = "http://two"
    assert find_locustfile_host(ours, every) is None
    plain.host = None
    type("Third", (ours,), {"host": "http://three"})
    assert find_locustfile_host(ours, every) is None


@pytest.mark.parametrize(
    ("now", "checked", "found", "lines"),
    [
        ("http://one/v1", "http://one", "http://one", 0),
        ("http://two", "http://one", "http://one", 1),
        (None, "http://one", "http://one", 0),
        # no command line, no form: an environment of somebody's own
        ("two:1/v1", "", "http://two:1", 0),
    ],
)
def test_a_run_begins_at_the_address_that_was_checked(
    now: str | None, checked: str, found: str, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert choose_run_address(now, checked) == found
    assert len(caplog.records) == lines
