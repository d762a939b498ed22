"""The key command: when it is run, what becomes of what it prints, and that none of it is shown."""

import os
import time
from collections.abc import Callable, Sequence

import gevent
import pytest
from gevent.event import Event
from support.command_line import parse

from locust_llm.access.api_key_process import (
    AGAIN_S,
    MAX_BYTES,
    KeyCommand,
    KeyFailed,
    capture_program_output,
    get_key_command,
)
from locust_llm.access.headers_and_api_key import KeyHeaders, read_request_headers
from locust_llm.locust_adapter.command_line_parser import check_options
from locust_llm.locust_adapter.withheld_options import list_secret_names
from locust_llm.settings.run_refusal import RunRefused


class Told:
    """A command that prints the next of these, and the time."""

    def __init__(self, *texts: str) -> None:
        self.texts, self.runs, self.now = list(texts), 0, 1000.0
        self.spawned: list[Callable[[], object]] = []

    def run(self, words: Sequence[str]) -> str:
        self.runs += 1
        text = self.texts.pop(0)
        if text.startswith("!"):
            raise KeyFailed(text)
        return text

    def command(self, lifetime_s: float | None = None) -> KeyCommand:
        return KeyCommand(["x"], lifetime_s, run=self.run, clock=lambda: self.now, spawn=self.spawn)

    def spawn(self, call: Callable[[str], object], key: str) -> None:
        self.spawned.append(lambda: call(key))


def test_a_key_that_the_server_had_taken_is_renewed_once_for_all_that_it_refuses() -> None:
    told = Told("first\n", "second\n", "third")
    command = told.command()
    assert (command.key(), command.key(), told.runs) == ("first", "first", 1)
    command.accepted("first")
    assert [command.next("first") for _ in range(5)] == [True] * 5
    assert (command.key(), told.runs) == ("second", 2)
    # the server has never taken it: the command would print the same
    assert not command.next("second")
    assert told.runs == 2
    told.now += AGAIN_S
    assert command.next("second")
    assert (command.key(), told.runs, command.keys) == ("third", 3, {"first", "second", "third"})


def test_a_late_answer_to_an_old_key_does_not_vouch_for_the_new_one() -> None:
    told = Told("first", "second")
    command = told.command()
    command.key()
    command.accepted("first")
    assert command.next("first")
    command.accepted("first")
    assert not command.taken


def test_a_command_that_fails_leaves_the_old_key_and_is_not_run_at_once_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = Told("first", "! it ended with status 1", "second")
    command = told.command()
    command.key()
    command.accepted("first")
    assert [command.next("first") for _ in range(3)] == [False] * 3
    assert (command.key(), told.runs) == ("first", 2)
    assert "it ended with status 1: requests continue with the old key" in caplog.text
    told.now += AGAIN_S
    assert command.next("first")


def test_a_request_that_is_refused_with_a_new_key_too_asks_for_no_third() -> None:
    """Others are answered all the while: it is no matter of age, and the command would be run for
    each of its kind."""
    told = Told("first", "second", "third")
    keys = KeyHeaders(told.command(), lambda key: {"x-api-key": key})
    assert not keys.expired(dict(keys), 200)
    assert keys.expired(dict(keys), 401)
    assert keys.another(dict(keys, **{"x-api-key": "first"}))
    assert not keys.expired(dict(keys), 401, again=True)
    assert not keys.expired(dict(keys), 200)
    assert keys.expired(dict(keys), 401)
    assert not keys.another(dict(keys))
    assert told.runs == 2
    told.now += AGAIN_S
    assert keys.another(dict(keys))


def test_past_its_lifetime_a_key_is_renewed_beside_the_requests() -> None:
    told = Told("first", "! no", "second")
    command = told.command(lifetime_s=600)
    command.key()
    told.now += 599
    assert (command.key(), told.spawned) == ("first", [])
    told.now += 1
    assert [command.key() for _ in range(3)] == ["first"] * 3
    (renewal,) = told.spawned
    renewal()  # fails
    assert (command.key(), len(told.spawned)) == ("first", 1)
    told.now += AGAIN_S
    assert (command.key(), len(told.spawned)) == ("first", 2)
    told.spawned[1]()
    assert (command.key(), told.runs) == ("second", 3)


def test_each_run_begins_with_a_new_key_but_the_first_not_with_two() -> None:
    told = Told("first", "second")
    command = told.command()
    command.begin()
    command.begin()
    assert told.runs == 1
    told.now += AGAIN_S
    command.begin()
    assert (command.key(), told.runs) == ("second", 2)


def test_requests_that_are_refused_meanwhile_wait_for_the_one_run_and_others_go_on() -> None:
    runs, ends = [0], Event()

    def run(words: Sequence[str]) -> str:
        runs[0] += 1
        if runs[0] > 1:
            ends.wait()
        return f"key {runs[0]}"

    command = KeyCommand(["x"], run=run)
    command.key()
    command.accepted("key 1")
    waiting = [gevent.spawn(command.next, "key 1") for _ in range(8)]
    gevent.sleep(0.01)
    assert not any(one.ready() for one in waiting)
    assert command.key() == "key 1"  # a request that is sent now does not wait
    ends.set()
    gevent.joinall(waiting, timeout=10)
    assert [one.value for one in waiting] == [True] * 8
    assert (command.key(), runs) == ("key 2", [2])


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exit 3", "--api-key-command ended with status 3"),
        (
            "echo sk-secret-key-1; echo 'log in first, sk-secret-key-1' >&2; exit 1",
            r"status 1: log in first, \*\*\*",
        ),
        (f"head -c {MAX_BYTES + 1} /dev/zero", "printed more than 16 kB"),
        ("sleep 60 & exec sleep 60", r"did not end within 0.3 s"),
    ],
)
def test_a_program_that_gives_no_key(script: str, said: str) -> None:
    with pytest.raises(KeyFailed, match=said) as caught:
        capture_program_output(["sh", "-c", script], limit_s=0.3 if "sleep" in script else 30.0)
    assert "sk-secret" not in str(caught.value)


def test_a_program_has_its_whole_time_where_the_event_loop_stood_still_before() -> None:
    gevent.sleep(0.01)
    time.sleep(2.1)  # the loop does not turn: for it, this is still the moment before
    assert capture_program_output(["sh", "-c", "sleep 0.1; echo key"], limit_s=2.0) == "key\n"


@pytest.mark.parametrize("text", ["", " \n", "one\ntwo\n", "k\u20acy"])
def test_what_is_no_key(text: str) -> None:
    with pytest.raises(KeyFailed, match="must print") as caught:
        Told(text).command().key()
    assert "two" not in str(caught.value)


def test_words_are_those_of_a_shell_and_others_run_meanwhile() -> None:
    ticks: list[int] = []
    ticking = gevent.spawn(lambda: [(ticks.append(i), gevent.sleep(0.01)) for i in range(1000)])
    assert capture_program_output(["sh", "-c", "sleep 0.2; echo $0 $1", "a b", "$c"]) == "a b $c\n"
    ticking.kill()
    assert ticks
    for wrong, said in (
        ("'", "is not a valid command"),
        ("  ", "is empty"),
        ("/no/such/program", "cannot be started: No such file"),
    ):
        with pytest.raises(KeyFailed, match=said):
            get_key_command(wrong, None).key()


def test_headers_have_the_key_that_is_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of-the-environment")
    found = read_request_headers(
        parse("--api-key-command", "echo of-the-command", "--header", "X-Team: a")
    )
    assert isinstance(found, KeyHeaders)
    assert dict(found) == {"Authorization": "Bearer of-the-command", "X-Team": "a"}
    messages = parse("--api-key-command", "echo of-the-command", "--endpoint-type", "messages")
    assert read_request_headers(messages)["x-api-key"] == "of-the-command"
    assert list_secret_names(messages) == ("Authorization",)
    with pytest.raises(ValueError, match="exclude each other"):
        read_request_headers(parse("--api-key-command", "a", "--api-key-file", os.devnull))
    with pytest.raises(RunRefused, match="--api-key-lifetime needs --api-key-command"):
        check_options(parse("--api-key-lifetime", "60"))


def test_a_session_gets_the_new_key_and_one_of_its_own_stays() -> None:
    told = Told("first", "second")
    keys = KeyHeaders(told.command(), lambda key: {"Authorization": f"Bearer {key}"})
    session: dict[str, str | bytes] = dict(keys)
    own: dict[str, str | bytes] = {"Authorization": "Bearer mine"}
    assert not keys.expired(session, 200)
    assert not keys.expired(own, 401)
    assert not keys.expired(session, 403)
    assert keys.expired(session, 401)
    assert keys.another(session)
    for headers in (session, own):
        keys.renew(headers)
    assert (session["Authorization"], own["Authorization"]) == ("Bearer second", "Bearer mine")
