"""Headers and API key: the headers of the requests, with the key, from the environment, a file, a
command or flags. They are never written anywhere."""

import os
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Final

from locust_llm.files.user_file import read_small_text
from locust_llm.protocols.protocol_registry import PROTOCOLS
from locust_llm.settings.ab_arms import parse_candidate_changes
from locust_llm.settings.environment_and_config_file import read_variable_lines
from locust_llm.workload.model_and_tenant_mix import parse_tenant_headers

from .api_key_process import FLAG, KeyCommand, get_key_command
from .api_key_process import HEADER_VALUE as HEADER_VALUE

EXPIRED: Final = 401
BEARER: Final = "Bearer "
NO_LINE: Final = "the API key (--api-key-file or OPENAI_API_KEY) is not one line of text"


class KeyHeaders(Mapping[str, str]):
    """The headers of every request, with the key that is in force when they are read."""

    def __init__(self, command: KeyCommand, made: Callable[[str], dict[str, str]]) -> None:
        """``made`` makes the headers from the key."""
        self.command, self._made = command, made

    def __getitem__(self, name: str) -> str:
        return self._made(self.command.key())[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made(self.command.key()))

    def __len__(self) -> int:
        return len(self._made(self.command.key()))

    def renew(self, headers: MutableMapping[str, str | bytes]) -> None:
        """Put the present key into the headers of a session of requests, where they hold an earlier
        one."""
        key = self.command.key()
        if self._carried(headers) not in ("", key):
            headers.update(self._made(key))

    def expired(
        self, sent: Mapping[str, str | bytes], status: int | None, *, again: bool = False
    ) -> bool:
        """Whether the key in ``sent`` is no longer valid, by the status of the response. ``again``:
        the request had been sent before, with another key."""
        if status == EXPIRED and again:
            self.command.doubt()
        elif status == EXPIRED:
            return bool(self._carried(sent))
        if status is not None and status < 400 and not self.command.taken:
            self.command.accepted(self._carried(sent))
        return False

    def another(self, sent: Mapping[str, str | bytes]) -> bool:
        """Whether there is another key than in the headers ``sent``. Waits for the command."""
        return self.command.next(self._carried(sent))

    def _carried(self, headers: Mapping[str, str | bytes]) -> str:
        """The command's key in the headers; empty: there is none."""
        texts = (
            value.decode("latin-1") if isinstance(value, bytes) else value
            for value in headers.values()
        )
        return next(
            (key for text in texts if (key := text.removeprefix(BEARER)) in self.command.keys), ""
        )


def read_request_headers(options: Namespace | None, protocol: str = "") -> Mapping[str, str]:
    """The headers of every request, with the key.

    ``protocol`` replaces the options' protocol. Raises OSError for a key file. Raises ValueError of
    one sentence for a key that is missing, or that no header can carry.
    """
    if options is None or not hasattr(options, "header"):
        return {}
    protocol = protocol or getattr(options, "endpoint_type", "")
    own = PROTOCOLS.get(protocol, PROTOCOLS["chat"])
    given = dict[str, str]()
    for header in read_given_headers(options):
        name, _, value = header.partition(":")
        given[name.strip()] = value.strip()
    if (command := find_key_command(options)) is not None:
        return KeyHeaders(command, lambda key: {**own.headers(key), **given})
    key = (
        read_small_text(options.api_key_file)
        if options.api_key_file
        else os.environ.get("OPENAI_API_KEY", "")
    )
    if not HEADER_VALUE.fullmatch(key.strip()):
        raise ValueError(NO_LINE)
    return {**own.headers(key.strip()), **given}


def read_headers_at_start(options: Namespace | None) -> Mapping[str, str]:
    """The headers of a run that begins, with a new key where a command prints it. Raises as
    ``read_request_headers``."""
    headers = read_request_headers(options)
    if isinstance(headers, KeyHeaders):
        headers.command.begin()
    return headers


def find_key_command(options: Namespace) -> KeyCommand | None:
    """None: the key has another source. Raises ValueError of one sentence."""
    text = getattr(options, "api_key_command", None)
    lifetime_s = getattr(options, "api_key_lifetime", None)
    if not text:
        return None
    if options.api_key_file:
        raise ValueError(f"{FLAG} and --api-key-file exclude each other: use one of them")
    return get_key_command(text, lifetime_s)


def read_given_headers(options: Namespace) -> list[str]:
    """The headers of the environment, which no list of processes shows, and of the flag."""
    return [*read_variable_lines("LOCUST_LLM_HEADERS"), *options.header]


def read_given_candidate_headers(options: Namespace) -> list[str]:
    """The candidate's headers of the environment and of the flag."""
    return [*read_variable_lines("LOCUST_LLM_CANDIDATE_SET"), *options.candidate_set]


def read_candidate_headers(options: Namespace | None) -> dict[str, str]:
    """The headers that the candidate gets beside the headers of every request, or in their place.
    They are never written anywhere."""
    if options is None or not hasattr(options, "candidate_set"):
        return {}
    return parse_candidate_changes(read_given_candidate_headers(options)).headers


def read_given_tenant_headers(options: Namespace) -> list[str]:
    return [*read_variable_lines("LOCUST_LLM_TENANT_HEADER"), *options.tenant_header]


def read_tenant_headers(options: Namespace | None) -> dict[str, dict[str, str]]:
    """For each tenant, the headers that its requests have beside the headers of every request. They
    are never written anywhere."""
    if options is None or not hasattr(options, "tenant_header"):
        return {}
    return parse_tenant_headers(read_given_tenant_headers(options))
