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
    "http_status": "the server answered with a status of 400 or above, or a redirect (none is "
    "followed)",
    "rate_limited": "HTTP 429",
    "unavailable": "HTTP 503",
    "stream_error": "an error in an answer that began with HTTP 200 (an object, a text, an event "
    "named error), or a "
    "finish_reason of an abort",
    "truncated": "the answer ended without a finish_reason; of several choices not each has one, "
    "and nothing came after",
    "malformed": "bytes that are no HTTP, no event stream, or no JSON where it was promised",
    "empty": "a finished answer without content, though the server counted more than the one token "
    "that ends a choice, "
    "or counted none",
    TOO_LARGE: "more bytes than --max-response-bytes, or more than 262,144 chunks: the connection "
    "was closed",
    TOO_LONG: "more than eight chunks per token of max_tokens and 4,096 more: the connection was "
    "closed",
    "timeout": "not finished within the request timeout",
    "first_token_timeout": "no first token within the first-token timeout",
    "gap_timeout": "no bytes for the length of the gap timeout, in the middle of the answer",
    "refused": "the connection was refused",
    "unreachable": "no route to the server's address, or the server's network reports that it is "
    "down",
    "no_socket": "this machine has no open file or no port left for a connection",
    "connect_timeout": "no connection within the connect timeout",
    "dns": "the host's name could not be resolved",
    "tls": "the TLS handshake failed",
    "proxy": "the proxy refused the tunnel, or gave none: nothing reached the server",
    "reset": "the connection was reset",
    "closed": "the connection was closed before the answer was complete",
    "send_failed": "the request could not be written",
    CLIENT_ERROR: "the load generator itself failed, not the server; the run ends with exit status 2",
    UNNAMED: "of an imported result: the load tester that made it says no more",
}
