"""Lab request: writes one request of a lab command as bytes, outside of a load test."""

import argparse
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import requests

from locust_llm.client.request_bytes import Request
from locust_llm.client.requests_bridge import format_request_head, make_target
from locust_llm.client.tls_settings import find_trusted_certificates
from locust_llm.protocols.protocol_registry import PROTOCOLS
from locust_llm.protocols.request_body import encode_request_body
from locust_llm.server.http_get import PROBE_HEADER
from locust_llm.server.length_control import make_length_fields
from locust_llm.server.refused_request_fields import RequestForm
from locust_llm.settings.run_options import Settings
from locust_llm.settings.server_address import join_server_url

TIMEOUT_S: Final = 120.0
"""An answer takes at most this time in seconds."""


class LabRequest(NamedTuple):
    """A request and its headers, which a new API key may change."""

    request: Request
    headers: Mapping[str, str]


def add_lab_request_options(parser: argparse.ArgumentParser) -> None:
    """The options for the model, the API and its path."""
    add = parser.add_argument
    add("--model", help="model to request (default: the server's first)")
    add(
        "--endpoint-type",
        choices=tuple(name for name, protocol in PROTOCOLS.items() if protocol.streams),
        default="chat",
        help="API of the server (default: %(default)s)",
    )
    add(
        "--endpoint",
        metavar="PATH",
        help="path of the endpoint, below --host (default: by the endpoint type)",
    )
    add(
        "--max-tokens-field",
        default="max_tokens",
        help="request field that limits the output length (default: %(default)s)",
    )


def make_lab_request(
    settings: Settings,
    headers: Mapping[str, str],
    model: str | None,
    text: str,
    tokens: int,
    *,
    form: RequestForm | None = None,
    forced: bool = False,
    streaming: bool = True,
    cancel_after_s: float | None = None,
    name: str = "",
) -> LabRequest:
    """``form``: see RequestForm; None: the settings' own. ``forced`` adds ``ignore_eos``."""
    more: dict[str, Any] = make_length_fields(("ignore_eos",), tokens) if forced else {}
    data = encode_request_body(
        settings.endpoint_type, model, [{"role": "user", "content": text}], tokens,
        streaming=streaming, **(form or RequestForm()).fields(settings), **more,
    )  # fmt: skip
    own = {
        "Content-Type": "application/json",
        "Accept-Encoding": "identity",
        PROBE_HEADER: "1",
        **headers,
    }
    prepared = requests.Request(
        "POST", join_server_url(settings.host, settings.endpoint), data=data, headers=own
    ).prepare()
    verify = False if settings.insecure else find_trusted_certificates()
    request = Request(
        target=make_target(prepared.url or "", verify, None),
        data=format_request_head(prepared) + b"\r\n" + data,
        labels={"id": name},
        timeout_s=TIMEOUT_S,
        cancel_after_s=cancel_after_s,
        kind=settings.endpoint_type,
    )
    return LabRequest(request, prepared.headers)
