"""HTTP get: a small request and its whole response, in bounded time and size, for the survey and
the metrics poller.

It takes the load's way: our own connections, certificates, proxy and HTTP parser, without
redirects. But no thread reads here, as nothing is timed, and the survey runs before Locust forks.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import requests
from gevent import Timeout

from locust_llm.client.compression import UNCOMPRESSED, decompress_body, parse_codings
from locust_llm.client.connection import ConnectFailed, Connection, Target, TLSClosed
from locust_llm.client.http_response_parser import HTTPParseError, HTTPResponseParser
from locust_llm.client.request_exchange import UserConnection
from locust_llm.client.requests_bridge import format_request_head, make_target
from locust_llm.client.response_chunks import MAX_ERROR_BYTES, MAX_HEADER_BYTES
from locust_llm.protocols.lenient_json import repair_json

PROBE_HEADER: Final = "X-Locust-LLM-Probe"
"""Marks our own requests that are no load."""
MAX_BYTES: Final = 4 << 20
"""A response has at most so many bytes, with its headers."""
OK: Final = 200
_EVENT_END: Final = re.compile(rb"\n\r?\n")
T = TypeVar("T")


class FetchFailed(Exception):
    """``outcome`` is an outcome of the record, ``too_large``, or ``no_url``."""

    def __init__(self, outcome: str, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome


class FetchedResponse(NamedTuple):
    """A whole response, whatever its status."""

    status: int
    server: str
    """Its Server header, as it came."""
    body: bytes
    via: str = ""
    """Its Via header, by which a proxy names itself, as it came."""


def fetch(
    method: str,
    url: str,
    headers: Mapping[str, str],
    data: bytes = b"",
    *,
    line: UserConnection | None = None,
    verify: bool | str = True,
    timeout_s: float,
    max_bytes: int = MAX_BYTES,
    begun: bool = False,
) -> FetchedResponse:
    """Send a request and return the response, if all of it came within ``timeout_s`` (connecting
    included). Raises FetchFailed.

    ``line`` keeps the connection for the next request. ``verify`` has requests' meaning. ``begun``:
    the first event of a stream is enough; then the connection is closed, so that the server ends
    the response.
    """
    wire, where = _prepared(method, url, headers, data, verify)
    used = line or UserConnection()
    limit = Timeout.start_new(timeout_s)
    connection_kept = False
    try:
        answer, connection_kept = _request_until_answered(used, where, wire, max_bytes, begun)
        return answer
    except ConnectFailed as error:
        raise FetchFailed(error.outcome, _reason(error)) from error
    except TLSClosed as error:
        raise FetchFailed("tls", str(error)) from error
    except OSError as error:
        outcome = "timeout" if isinstance(error, TimeoutError) else "reset"
        raise FetchFailed(outcome, error.strerror or str(error)) from error
    except Timeout as error:
        if error is not limit:
            raise
        raise FetchFailed("timeout", f"no complete response within {timeout_s:g} s") from error
    finally:
        limit.close()
        if line is None or not connection_kept:
            used.close()


def _request_until_answered(
    line: UserConnection, where: Target, wire: bytes, max_bytes: int, begun: bool
) -> tuple[FetchedResponse, bool]:
    """(the response, whether the connection can be used again).

    The request is sent once more if the server was closing a kept connection, so that not a byte
    came.
    """
    while True:
        old = line.open(where) is None
        frame = HTTPResponseParser()
        connection = line.connection
        assert connection is not None
        try:
            connection.send(connection.encrypt([wire]))
            return _answer(connection, frame, max_bytes, begun), frame.complete and frame.reusable
        except (OSError, TLSClosed, FetchFailed):
            if not old or frame.message_begun:
                raise
            line.close()


def _prepared(
    method: str, url: str, headers: Mapping[str, str], data: bytes, verify: bool | str
) -> tuple[bytes, Target]:
    """(the bytes on the wire, the target)."""
    own = {
        **requests.utils.default_headers(),
        "Accept-Encoding": "identity",
        PROBE_HEADER: "1",
        **headers,
    }
    if data:
        own["Content-Type"] = "application/json"
    try:
        prepared = requests.Request(method, url, data=data or None, headers=own).prepare()
    except requests.RequestException as error:
        raise FetchFailed("no_url", str(error)) from error
    if not (prepared.url or "").startswith(("http://", "https://")):
        raise FetchFailed("no_url", "it must begin with http:// or https://")
    try:
        return format_request_head(prepared) + b"\r\n" + data, make_target(
            prepared.url or "", verify, None
        )
    except OSError as error:  # of the certificates to trust
        raise FetchFailed(
            "tls", f"the trusted certificates cannot be read: {error.strerror or error}"
        ) from error


def _answer(
    connection: Connection, frame: HTTPResponseParser, max_bytes: int, begun: bool
) -> FetchedResponse:
    """Read the response. Raises FetchFailed, OSError and TLSClosed."""
    received = 0
    body = bytearray()
    looked = 0
    while not _is_complete(frame):
        if (
            begun
            and frame.has_headers
            and frame.get_code() == OK
            and _EVENT_END.search(body, looked)
        ):
            break
        looked = max(0, len(body) - 2)
        data = connection.receive()
        if data is None:
            frame.end()
            if _is_complete(frame) and not (
                connection.cut and decode_response(bytes(body), msgspec.Raw) is None
            ):
                break
            raise FetchFailed(
                "closed", "the server closed the connection before the response was complete"
            )
        received += len(data)
        if received > max_bytes:
            raise FetchFailed("too_large", f"the response has more than {max_bytes >> 20} MB")
        try:
            frame.feed(data)
        except (HTTPParseError, ValueError) as error:
            if _is_complete(frame):  # a whole answer, and something after it
                break
            raise FetchFailed("malformed", f"not HTTP: {error}") from error
        finally:
            for _, piece in frame.pieces:  # of a byte each, perhaps: they must not pile up
                body += piece
            frame.pieces.clear()
        if received > MAX_HEADER_BYTES and not frame.has_headers:
            raise FetchFailed("malformed", "not HTTP: endless headers")
    content = bytes(body)
    if applied := parse_codings(str(frame.get("content-encoding", ""))):
        failed = frame.get_code() >= 400
        error_body = (
            decompress_body(content, applied, min(max_bytes, MAX_ERROR_BYTES)) if failed else None
        )
        if error_body is None:
            raise FetchFailed(
                "malformed",
                f"Content-Encoding {', '.join(applied)}: {UNCOMPRESSED}",
            )
        content = error_body
    server, via = (str(frame.get(name, "")) for name in ("server", "via"))
    return FetchedResponse(frame.get_code(), server, content, via)


def _is_complete(frame: HTTPResponseParser) -> bool:
    return frame.complete


def decode_response(body: bytes, kind: type[T]) -> T | None:
    """The JSON of a response if each field has this type. A boolean is no number."""
    try:
        try:
            return msgspec.json.decode(body, type=kind)
        except ValueError:
            return msgspec.json.decode(repair_json(body), type=kind)
    except (ValueError, RecursionError):
        return None


def _reason(error: ConnectFailed) -> str:
    """The error without the address, which the caller knows."""
    cause: Any = error.__cause__
    return getattr(cause, "strerror", None) or str(error).partition(": ")[2] or str(error)
