"""Withheld options: secret options stay in this process, though Locust sends all options to whoever
joins as a worker.

Locust's messages are neither encrypted nor signed, and it does not check who a worker is. So a
secret is read where it is used. Each worker has the environment variable, the file or the flag
itself, and sends only the names of its secrets.
"""

from argparse import Namespace
from typing import Any, Final

from locust.rpc.protocol import Message
from locust.rpc.zmqrpc import BaseSocket

from locust_llm.access.headers_and_api_key import (
    read_candidate_headers,
    read_request_headers,
    read_tenant_headers,
)
from locust_llm.client.tls_settings import find_client_certificate

from .command_line_parser import list_secret_flags

WITHHELD: Final = (
    "header", "api_key_file", "api_key_command", "candidate_set", "tenant_header", "client_cert",
    "client_key", "ca_cert", "disrupt", "pid", "memory_command",
)  # fmt: skip
"""Options that each worker keeps for itself."""


def withhold_secrets() -> None:
    """Withhold secrets in this process from now on. It changes the class, as Locust makes a new
    socket when one breaks."""
    send = BaseSocket.send_to_client
    if getattr(send, "withholds", False):
        return

    def send_to_client(self: Any, message: Message) -> None:
        send(self, strip_secrets(message))

    send_to_client.withholds = True  # type: ignore[attr-defined]
    BaseSocket.send_to_client = send_to_client  # type: ignore[method-assign]


def strip_secrets(message: Message) -> Message:
    """Strip the message that starts users, which holds all options. Other messages stay as they
    are."""
    if message.type != "spawn":
        return message
    options: dict[str, Any] = message.data["parsed_options"]
    secret = {*WITHHELD, *list_secret_flags()}
    public = {name: value for name, value in options.items() if name not in secret}
    return Message("spawn", {**message.data, "parsed_options": public}, message.node_id)


def list_secret_names(options: Namespace | None) -> tuple[str, ...]:
    """The names of headers and secret flags of the locustfile (``is_secret``) that have a value in
    this process. Raises OSError and ValueError."""
    flags = [
        f"--{name.replace('_', '-')}"
        for name in list_secret_flags()
        if getattr(options, name, None)
    ]
    of_candidate = [
        f"--candidate-set header:{name.title()}" for name in read_candidate_headers(options)
    ]
    of_tenants: list[str] = []
    for tenant, headers_of_tenant in read_tenant_headers(options).items():
        of_tenants += (f"--tenant-header {tenant}:{name.title()}" for name in headers_of_tenant)
    # a worker does not know the master's protocol when it greets
    headers = [name.title() for name in read_request_headers(options, "chat")]
    certificate = ["--client-cert"] if find_client_certificate() else []
    return tuple(sorted({*certificate, *headers, *flags, *of_candidate, *of_tenants}))
