"""A command of the operator: no key in its environment, a time limit, an end for all that it
started, and a text without secrets."""

import gc
import os
import time
from collections.abc import Callable

import gevent
import pytest

from locust_llm.access.operator_command import (
    CommandFailed,
    OperatorCommand,
    find_environment_keys,
    find_marked_processes,
    remove_keys,
    show_command,
)
from locust_llm.text.hide_secrets import Secrets

FLAG = "--memory-command"
PATH = {"PATH": os.environ["PATH"]}


def make(text: str, *secrets: str, **more: str) -> OperatorCommand:
    return OperatorCommand(FLAG, text, secrets, PATH | more)


def test_a_command_prints_and_ends() -> None:
    end = make("sh -c 'echo 17; echo a warning >&2; exit 3'").run(120.0)
    assert (end.status, end.printed, end.error) == (3, "17\n", "a warning")


def test_it_gets_no_key_from_the_environment() -> None:
    command = make(
        "env", "abcdef-of-the-run",
        OPENAI_API_KEY="sk-1", MY_TOKEN="t", LOCUST_LLM_HEADERS="X-Team: a", LOCUST_LLM_HOST="h",
        LINE="x abcdef-of-the-run", SSH_AUTH_SOCK="agent.sock", HOME="/here",
    )  # fmt: skip
    names = {line.partition("=")[0] for line in command.run(120.0).printed.splitlines()}
    assert names - {"PWD", "_", "SHLVL"} == {"PATH", "SSH_AUTH_SOCK", "HOME", "LOCUST_LLM_COMMAND"}


def test_the_folder_of_the_shell_is_no_password() -> None:
    folder = {"PWD": "tests", "OLDPWD": "tests"}
    assert find_environment_keys(folder) == set()
    assert remove_keys(folder, []) == folder


def test_a_value_that_holds_a_key_of_another_variable_is_removed() -> None:
    environment = {"API_KEY": "secret-1", "CURL_ARGS": "-H secret-1", "LANG": "C"}
    assert remove_keys(environment, ["secret-1"]) == {"LANG": "C"}


@pytest.mark.parametrize(
    ("script", "status"), [("sleep 60", None), ("exec >&-; sleep 60", None), ("yes", None)]
)
def test_it_is_killed_at_its_limit_and_when_it_prints_too_much(
    script: str, status: int | None
) -> None:
    began = time.monotonic()
    end = make(f"sh -c '{script}'").run(0.3, most_bytes=1000)
    assert end.status is status
    assert len(end.printed) <= 1000
    assert time.monotonic() - began < 55


def test_a_process_that_it_leaves_behind_does_not_hold_it_up() -> None:
    command = make("sh -c 'sleep 60 & echo 5'")
    end = command.run(120.0)
    assert (end.status, end.printed) == (0, "5\n")
    assert end.seconds < 55
    command.end()


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_all_that_it_started_ends_also_in_another_session() -> None:
    command = make("sh -c 'sleep 61 & setsid sleep 62 & echo started'")
    assert command.run(120.0).printed == "started\n"
    mark = command._mark
    wait_until(lambda: len(list(find_marked_processes(mark))) == 2)
    command.end()
    wait_until(lambda: not list(find_marked_processes(mark)))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("'", "--memory-command is not a valid command: No closing quotation"),
        ("  ", "--memory-command is empty"),
    ],
)
def test_a_command_that_cannot_be_read(text: str, why: str) -> None:
    with pytest.raises(CommandFailed, match=why):
        make(text)


def test_a_command_that_does_not_exist() -> None:
    with pytest.raises(CommandFailed, match="cannot be started: No such file"):
        make("/no/such/program").run(1.0)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("kill -TERM 17", "kill -TERM 17"),
        ("docker restart --time 10 vllm", "docker restart --time 10 vllm"),
        ("run --api-key sk-1", "run --api-key ***"),
        ("run --password=pw123456 -v", "run --password=*** -v"),
        ("sh -c 'TOKEN=abc curl x'", "sh -c 'TOKEN=*** curl x'"),
        ("curl -H 'Authorization: Bearer abc'", "curl -H 'Authorization: Bearer ***'"),
        ("curl -H \"X-Api-Key: abc\" u", "curl -H \"X-Api-Key: ***\" u"),
        ("curl -u me:word http://h/x", "curl -u me:*** http://h/x"),
        ("curl --user=me:word h", "curl --user=me:*** h"),
        ("curl http://me:word@h/x?key=abc", "curl http://***@h/x?key=***"),
        ("echo sk-of-the-run", "echo ***"),
        ("ps -o rss= -p 17", "ps -o rss= -p 17"),
    ],
)  # fmt: skip
def test_reports_show_no_secret_of_its_text(text: str, shown: str) -> None:
    assert show_command(text, Secrets(["sk-of-the-run"])) == shown


def test_an_error_line_shows_no_secret() -> None:
    end = make("sh -c 'echo denied: sk-of-the-run >&2'", "sk-of-the-run").run(120.0)
    assert end.error == "denied: ***"


def test_nothing_reads_on_when_the_greenlet_of_a_command_is_killed() -> None:
    """As at the end of a run: the pipe is closed, and a reader of it would fail."""
    command = make("sh -c 'setsid sleep 60 & sleep 60'")
    runner = gevent.spawn(command.run, 120.0)
    gevent.sleep(0.2)
    assert len(find_readers()) == 1
    runner.kill()
    assert find_readers() == []
    command.end()


def find_readers() -> list[gevent.Greenlet]:
    greenlets = [one for one in gc.get_objects() if isinstance(one, gevent.Greenlet)]
    return [one for one in greenlets if not one.dead and "_collect" in str(one)]
