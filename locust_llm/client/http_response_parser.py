"""HTTP response parser: takes one response out of its HTTP frame, each piece of its body with the
number of the read that brought it."""

from geventhttpclient.response import HTTPParseError as HTTPParseError
from geventhttpclient.response import HTTPResponse

from .sse import Piece


class HTTPResponseParser(HTTPResponse):
    """One HTTP response. ``pieces`` collects its body; each piece has the number of the read that
    brought it."""

    def __init__(self) -> None:
        super().__init__("POST")
        self.read = 0
        self.headers_read = 0
        """The number of the read that ended the headers."""
        self.pieces: list[Piece] = []
        self.chunked = False
        self.closed_by_peer = False

    def _on_body(self, data: bytearray) -> None:
        self.pieces.append((self.read, bytes(data)))

    def _on_headers_complete(self) -> int | bool | None:
        result: int | bool | None = super()._on_headers_complete()
        self.headers_read = self.read
        self.chunked = "chunked" in str(self.get("transfer-encoding", "")).lower()
        return result

    def _on_header_field(self, string: str) -> None:
        # else it is a trailer: nobody asks for it, and it may be endless
        if not self.headers_complete:
            super()._on_header_field(string)

    def _on_header_value(self, string: str) -> None:
        if not self.headers_complete:
            super()._on_header_value(string)

    def _on_message_begin(self) -> None:
        # whatever follows is no part of this answer, and the connection cannot be used again
        if self.complete:
            raise HTTPParseError("bytes after the end of the response")
        super()._on_message_begin()

    @property
    def complete(self) -> bool:
        """The response is complete. An interim response (1xx) is not the response."""
        return bool(self.message_complete) and self.get_code() >= 200

    @property
    def has_headers(self) -> bool:
        return bool(self.headers_complete) and self.get_code() >= 200

    def has_any(self, names: frozenset[str]) -> bool:
        """One of these headers (in lower case) came. This is faster than a query for each."""
        return not names.isdisjoint(dict.keys(self._headers_index))  # type: ignore[arg-type]  # its keys are lower-case

    def end(self) -> None:
        """The peer closed. An answer without a length and without chunks ends so (RFC 9112,
        6.3)."""
        self.closed_by_peer = True
        if self.has_headers and not self.chunked and self.content_length is None:
            self.message_complete = True

    @property
    def reusable(self) -> bool:
        """Another request may be sent on this connection."""
        return not self.closed_by_peer and self.complete and not self.should_close()
