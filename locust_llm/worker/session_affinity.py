"""Session affinity: the address for the requests of a session, and the header that its server gave
it to send back."""

import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

from locust_llm.client.response_chunks import Response
from locust_llm.settings.ab_arms import TrialBlock
from locust_llm.worker.ab_targets import VariantTarget

logger = logging.getLogger("locust_llm")

MAX_SESSIONS: Final = 100_000
"""The most sessions whose address and header are known. Beyond them, the session that was longest
without a request counts as new."""
MAX_TOKEN_CHARS: Final = 8_000
"""The longest value that is sent back. Servers accept no longer headers."""


class _Session:
    __slots__ = ("address", "token")

    def __init__(self, address: str) -> None:
        self.address, self.token = address, ""


class Affinity:
    """The sessions of one process. A new session goes to the next address and stays there. A
    request without a session goes to the next address."""

    def __init__(
        self,
        sides: Mapping[str, VariantTarget],
        hosts: Sequence[str] = (),
        echo_header: str | None = None,
        *,
        first: int = 0,
    ) -> None:
        """``sides`` has the arms by name. ``hosts`` has all addresses, where there are several.
        ``first`` is the address to begin with: a process has few sessions, so not all processes
        begin with the same one."""
        self.sides = sides
        self._hosts, self._echo_header, self._next = hosts, echo_header, first
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._has_reported = False

    def side(self, block: TrialBlock | None, session: str = "") -> VariantTarget:
        """The target of this session's next request, with the header that it sends back."""
        target = next(iter(self.sides.values())) if block is None else self.sides[block.arm]
        if not self._hosts and self._echo_header is None:
            return target
        known = self._session(session)
        if self._hosts:
            target = target._replace(address=known.address)
        if known.token and self._echo_header is not None:
            target = target._replace(headers={**target.headers, self._echo_header: known.token})
        return target

    def answered(self, session: str, stream: Response) -> None:
        """Keep the header that its next request sends back. It is never written anywhere."""
        if self._echo_header is None:
            return
        token = read_response_header(stream, self._echo_header)
        if token and len(token) <= MAX_TOKEN_CHARS and token.isascii() and token.isprintable():
            if session:
                self._session(session).token = token
        elif not self._has_reported and stream.status == 200:
            self._has_reported = True
            why = "can be sent back" if token else "is in the response"
            logger.warning(
                f"no {self._echo_header} that {why}: its session continues unchanged "
                "(--echo-header)"
            )

    def secrets(self, stream: Response | None) -> dict[str, str]:
        """The values by header that no text may hold of a request that ``stream`` answered, beside
        what was sent."""
        if self._echo_header is None:
            return {}
        return {
            self._echo_header: ""
            if stream is None
            else read_response_header(stream, self._echo_header)
        }

    def _session(self, name: str) -> _Session:
        known = self._sessions.get(name)
        if known is None:
            known = _Session(self._hosts[self._next % len(self._hosts)] if self._hosts else "")
            self._next += 1
            if not name:
                return known
            self._sessions[name] = known
            if len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)
        self._sessions.move_to_end(name)
        return known


def read_response_header(stream: Response, name: str) -> str:
    """The first header of an answer with this name. Empty: it has none."""
    value = stream.frame.get(name, "") if stream.frame.has_headers else ""
    return str(value[0] if isinstance(value, list) else value).strip()
