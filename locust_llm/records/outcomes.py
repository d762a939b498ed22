"""Outcomes: what becomes of a request: ok, one of the failures, or ended by the load generator."""

from typing import Final

# The closed set of outcomes of a request. OK, and the three that the load generator causes itself,
# are no failures.
OK: Final = (
    # it has content and a finish_reason; ``error`` notes if the model ended at once, or if [DONE]
    # was its end
    "ok"
)
# on purpose: the user, the code of a task, or a cancellation that was asked for
CANCELLED: Final = "cancelled"
CUT: Final = "cut"  # still running when the grace period at the end of the run ended
RETRIED: Final = (
    # refused (HTTP 429, 503; 401 of an expired key), tried again; the last attempt has the result
    "retried"
)
TOO_LARGE: Final = "too_large"
TOO_LONG: Final = "too_long"
CLIENT_ERROR: Final = "client_error"
UNNAMED: Final = "unnamed"
FAILURES: Final = {
    "http_status": (
        "the server answered with an HTTP status of 400 or above, or with a redirect (redirects "
        "are not followed)"
    ),
    "rate_limited": "HTTP 429",
    "unavailable": "HTTP 503",
    "stream_error": (
        "an error in a response that began with HTTP 200 (an object, a text, an event named "
        "error), or a finish_reason that means an abort"
    ),
    "truncated": "the response ended without a finish_reason, or without one for each of several choices",
    "malformed": "bytes that are not valid HTTP, or not the promised event stream or JSON",
    "empty": (
        "a finished response without content, although the server counted more tokens than the "
        "one that ends a choice, or counted none"
    ),
    TOO_LARGE: (
        "more bytes than --max-response-bytes, or more than 262,144 chunks; the load generator "
        "closed the connection"
    ),
    TOO_LONG: (
        "more chunks than eight per token of max_tokens plus 4,096; the load generator closed the "
        "connection"
    ),
    "timeout": "not finished within --request-timeout",
    "first_token_timeout": "no first token within --first-token-timeout",
    "gap_timeout": "no bytes for the time of --gap-timeout, in the middle of the response",
    "refused": "the connection was refused",
    "unreachable": "no route to the server's address, or its network is down",
    "no_socket": "this machine has no file descriptor or port left for a connection",
    "connect_timeout": "no connection within the connect timeout",
    "dns": "the host's name could not be resolved",
    "tls": "the TLS handshake failed",
    "proxy": "the proxy refused the tunnel or did not create one: nothing reached the server",
    "reset": "the connection was reset",
    "closed": "the connection was closed before the response was complete",
    "send_failed": "the request could not be written",
    CLIENT_ERROR: "the load generator itself failed, not the server; the run ends with exit status 2",
    UNNAMED: "unknown (an imported result whose load tester gives no reason)",
}

DEAD_S: Final = 10.0
"""A server that sends nothing for so long, although requests wait, is dead and not slow."""
NO_ANSWER_STATUSES: Final = (502, 503, 504)
"""With these a proxy, or a server that starts, reports that no model answers."""
OWN_ENDS: Final = ("no_socket", CLIENT_ERROR, TOO_LARGE, TOO_LONG, CANCELLED)
"""The load generator caused these ends. They show no silent server."""
NO_ANSWER_ENDS: Final = (
    *OWN_ENDS, CUT, "timeout", "first_token_timeout", "gap_timeout", "closed", "reset", "truncated",
)  # fmt: skip
"""Such an end is no answer, whatever status the response began with: the load generator ended it,
or its connection broke."""


def is_answer(outcome: str, status: int | None, *, has_chunk: bool) -> bool:
    """Whether a request shows that the server answered: a chunk came, or the server's own status
    ended it. All that names a time without answers decides by this."""
    if has_chunk:
        return True
    return status is not None and status not in NO_ANSWER_STATUSES and outcome not in NO_ANSWER_ENDS


def is_unanswered(outcome: str, status: int | None, *, has_chunk: bool) -> bool:
    """Whether a request shows that the server did not answer. A retried attempt counts with its
    last one."""
    if has_chunk or outcome in (OK, RETRIED, *OWN_ENDS):
        return False
    return status is None or status in NO_ANSWER_STATUSES
