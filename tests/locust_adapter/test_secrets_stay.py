"""Withheld: no secret is in a message between master and workers, and a worker without its own is
refused by name."""

from support import unpatched_locust  # noqa: F401  before anything of Locust

# isort: split
import os
import sys

from locust.rpc.protocol import Message

import pytest
from support.command_line import parse
from support.unpatched_locust import get_empty_argument_parser, setup_parser_arguments

from locust_llm.locust_adapter.command_line_help import format_command_line
from locust_llm.locust_adapter.command_line_parser import add_options, list_secret_flags
from locust_llm.locust_adapter.withheld_options import list_secret_names, strip_secrets
from locust_llm.wire.handshake import explain_worker_refusal, make_hello
from locust_llm.wire.worker_messages import Hello

KEY = "sk-of-the-environment-0123456789abcdef"
FLAG = "flag-secret-fedcba9876543210"
TENANT = "tenant-secret-00112233445566"
OWN = "secret-of-the-locustfile-4455"


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("LOCUST", "OPENAI"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "argv", ["locust"])


@pytest.mark.parametrize("posted", [{}, {"llm_secrets": ["my_plain"]}, {"llm_secrets": []}])
def test_the_message_that_starts_users_has_no_secret_and_the_options_keep_theirs(
    posted: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the options say is secret: a form, or a message, could change them."""
    monkeypatch.setattr(
        "locust_llm.locust_adapter.command_line_parser._secret_flags", {"my_password"}
    )
    options = parse("--header", f"X-Api-Key: {FLAG}", "--api-key-file", "key", "--model", "m")
    vars(options).update(my_password=OWN, **posted)
    message = Message("spawn", {"host": "h", "parsed_options": vars(options)}, "w")
    sent = strip_secrets(message)
    assert (sent.type, sent.node_id, sent.data["host"]) == ("spawn", "w", "h")
    assert set(vars(options)) - set(sent.data["parsed_options"]) == {
        "header",
        "api_key_file",
        "api_key_command",
        "client_cert",
        "client_key",
        "ca_cert",
        "candidate_set",
        "tenant_header",
        "disrupt",
        "memory_command",
        "pid",
        "my_password",
    }
    assert FLAG.encode() not in sent.serialize()
    assert (options.header, options.my_password) == ([f"X-Api-Key: {FLAG}"], OWN)
    other = Message("stop", None, "w")
    assert strip_secrets(other) is other


def test_a_process_says_for_what_it_has_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list_secret_names(None) == list_secret_names(parse()) == ()
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("LOCUST_LLM_HEADERS", f"x-tenant: {TENANT}")
    monkeypatch.setattr(
        "locust_llm.locust_adapter.command_line_parser._secret_flags",
        {"my_password", "unset", "missing"},
    )
    options = parse("--header", f"X-Api-Key: {FLAG}")
    vars(options).update(my_password=OWN, unset="")
    assert list_secret_names(options) == ("--my-password", "Authorization", "X-Api-Key", "X-Tenant")
    assert KEY not in str(make_hello([], list_secret_names(options)))


@pytest.mark.parametrize(
    ("theirs", "why"),
    [
        (("Authorization", "X-Api-Key"), ""),
        (
            ("X-Api-Key",),
            "it has no Authorization, but the master has: secrets are not sent over the network, "
            "so start the worker with OPENAI_API_KEY in its environment (or --api-key-file, or "
            "--header) too",
        ),
        (
            ("Authorization",),
            "it has no X-Api-Key, but the master has: secrets are not sent over the network, so "
            "start the worker with --header 'X-Api-Key: ...' (or LOCUST_LLM_HEADERS) too",
        ),
        (
            ("Authorization", "X-Api-Key", "X-Tenant"),
            "it has X-Tenant, but the master does not: remove it, or start the master with it too",
        ),
    ],
)
def test_a_worker_without_a_secret_is_refused_by_its_name(
    theirs: tuple[str, ...], why: str
) -> None:
    said, ours = Hello("1", "f (0)", theirs), Hello("1", "f (0)", ("Authorization", "X-Api-Key"))
    assert explain_worker_refusal("gpu7_4f", said, ours) == why


def test_the_command_that_a_run_keeps_hides_the_locustfiles_own_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["locust", "--my-password", OWN, f"--other={OWN}", "--short", "a", "data"]
    )
    assert (
        format_command_line([], [OWN, "a", None, ""])
        == "locust --my-password '***' '--other=***' --short '***' data"
    )


def test_the_parser_knows_the_secret_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("locust_llm.locust_adapter.command_line_parser._secret_flags", set())
    parser = get_empty_argument_parser(default_config_files=[])
    setup_parser_arguments(parser)
    add_options(parser, before_load=lambda _: None)
    parser.add_argument("--my-password", is_secret=True, default="")
    parser.add_argument("--my-plain", default="")
    parser.parse_args(["-f", "my/chat.py"])
    assert list_secret_flags() == ("my_password",)
