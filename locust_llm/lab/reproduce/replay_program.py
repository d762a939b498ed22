"""Replay program: sends recorded requests to a server at their times, and searches the answers for
the session codes of other requests.

It uses nothing but Python's standard library, and ``reproduction_script.py`` writes its text into
the script of a reproduction. So the search and the script send and search in the same way.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import socket
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network
from typing import Any, NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, unquote_plus, urlsplit
from urllib.request import getproxies, proxy_bypass

LEAD_S = 0.05
"""A connection is opened so long before its request is sent."""
PAUSE_S = 0.2
"""Between two tries, for the server to end what was cancelled."""
LONGEST_TRY = 3.0, 30.0
"""A try lasts at most this many times as long as in the run, and so many seconds more."""
KEY_VARIABLE = "OPENAI_API_KEY"
CODE = re.compile(r"Session code: ((?:[a-z]+ ){5}[a-z]+)\.")
ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}|[bfnrt])")
PROMPT_FIELDS = "system", "instructions", "messages", "input", "prompt"
TEXT_FIELDS = "content", "text"


class ReplayedRequest:
    """A request, and when it was sent and cancelled."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.at_s: float = fields["at_s"]
        """Seconds since the first request."""
        self.cancel_after_s: float | None = fields.get("cancel_after_s")
        """Seconds since it was sent. None: nobody cancelled it."""
        self.open: bool = fields.get("open", False)
        """It had not ended when the fault was there, so a try does not wait for its end."""
        self.headers: dict[str, str] = fields.get("headers", {})
        self.body: dict[str, Any] = fields["body"]
        self.words = join_words(json.dumps(self.body, ensure_ascii=False))
        self.codes = CODE.findall(json.dumps(self.body, ensure_ascii=False))


class ReplayedAnswer:
    """What came of one answer."""

    def __init__(self) -> None:
        self.status = 0
        self.data = b""
        self.is_stream = False
        self.error = ""

    def list_events(self) -> list[bytes]:
        """The data of each event of a stream, or the whole body."""
        if not self.is_stream:
            return [self.data] if self.data else []
        events = []
        for block in re.split(rb"\r?\n\r?\n", self.data):
            lines = [line[5:].strip() for line in block.splitlines() if line[:5] == b"data:"]
            if lines:
                events.append(b"\n".join(lines))
        return events


class HttpProxy(NamedTuple):
    """A proxy, through which a tunnel leads to the server."""

    host: str
    port: int
    login: str = ""
    """User and password with a colon between them."""


class Server:
    """Where the requests go."""

    def __init__(
        self,
        host: str,
        path: str,
        headers: Mapping[str, str],
        tls: ssl.SSLContext | None = None,
        source: str = "",
        proxy: HttpProxy | None = None,
    ) -> None:
        """``host`` may have a path and a query. A parameter of both has the value of ``path``.
        ``source``: the address from which connections leave. Empty: the kernel chooses it."""
        parts = split_address(host)
        self.netloc = parts.netloc.rpartition("@")[2]
        own_path, _, own_query = path.partition("?")
        query = join_queries(own_query, parts.query)
        below = parts.path.rstrip("/").removesuffix("/v1") + own_path
        self.path = f"{below}?{query}" if query else below
        self.headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        self.headers.update(headers)
        if "host" not in map(str.lower, self.headers):
            self.headers["Host"] = self.netloc
        self.tls: ssl.SSLContext | None = None
        if parts.scheme == "https":
            self.tls = tls or ssl.create_default_context()
        self._source = (source, 0) if source else None
        self._proxy = proxy

    def connect(self, timeout_s: float) -> http.client.HTTPConnection:
        server = split_address(self.netloc)
        name = server.hostname or ""
        port = server.port or (80 if self.tls is None else 443)
        near = (name, port) if self._proxy is None else (self._proxy.host, self._proxy.port)
        connection = http.client.HTTPConnection(
            *near, timeout=timeout_s, source_address=self._source
        )
        if self._proxy is not None:
            # Python 3.11 would write an IPv6 address without brackets
            authority = f"[{name}]" if ":" in name else name
            connection.set_tunnel(authority, port, make_proxy_headers(self._proxy))
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.tls is not None:
            connection.sock = self.tls.wrap_socket(connection.sock, server_hostname=name)
        return connection


def split_address(address: str) -> SplitResult:
    return urlsplit(address if "://" in address else f"http://{address}")


def join_queries(own: str, more: str) -> str:
    """Both queries. A parameter of both has the value of ``own``."""
    names = {name for name, _ in parse_qsl(own, keep_blank_values=True)}
    parts = [part for part in more.split("&") if unquote_plus(part.partition("=")[0]) not in names]
    return "&".join(filter(None, (own, *parts)))


def find_environment_proxy(address: str) -> HttpProxy | None:
    """The proxy of HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY. Connections to this machine
    itself use none."""
    parts = split_address(address)
    host = parts.hostname or ""
    is_here = host == "localhost" or host == "::1" or host.startswith("127.")
    proxies = getproxies()
    url = proxies.get(parts.scheme) or proxies.get("all") or ""
    netloc = parts.netloc.rpartition("@")[2]
    if is_here or not url or proxy_bypass(netloc) or is_in_network(host, proxies.get("no", "")):
        return None
    proxy = split_address(url)
    if proxy.scheme != "http" or not proxy.hostname:
        raise SystemExit(
            "the proxy of the environment cannot be used: only http://HOST is supported"
        )
    login = ""
    if proxy.username is not None:
        login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return HttpProxy(proxy.hostname, proxy.port or 80, login)


def is_in_network(host: str, listed: str) -> bool:
    """Whether an IPv4 address is in one of the listed networks (``10.0.0.0/8``)."""
    for entry in listed.replace(" ", "").split(","):
        with suppress(ValueError):
            if "/" in entry and IPv4Address(host) in IPv4Network(entry, strict=False):
                return True
    return False


def make_proxy_headers(proxy: HttpProxy) -> dict[str, str]:
    if not proxy.login:
        return {}
    return {"Proxy-Authorization": f"Basic {b64encode(proxy.login.encode()).decode()}"}


FindFault = Callable[[ReplayedRequest, ReplayedAnswer, Sequence[ReplayedRequest]], str]
"""Returns what is wrong in the answer to a request among others. Empty: the fault is not in it."""


class Try:
    """Sends requests once, each at its time, until one answer has the fault or all are over."""

    def __init__(
        self,
        server: Server,
        requests: Sequence[ReplayedRequest],
        find_fault: FindFault,
        fresh: str = "",
        latest: float = float("inf"),
        watched: ReplayedRequest | None = None,
        waits_for_all: bool = True,
    ) -> None:
        """``fresh``: a word before each prompt, so that no cache has it from an earlier try.
        ``latest``: the try ends at this time of the monotonic clock. ``watched``: only the answer
        to this request counts. None: each answer does. ``waits_for_all``: the others are searched
        too, for ``found_elsewhere``."""
        self._server = server
        self._requests = sorted(requests, key=lambda request: request.at_s)
        self._find_fault = find_fault
        self._fresh = fresh
        self._latest = latest
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._watched = watched
        awaited = [request for request in requests if not request.open] or requests
        if watched is not None and not waits_for_all:
            awaited = [watched]
        self._awaited = {id(request) for request in awaited}
        self.found = ""
        """What was wrong in the first answer with the fault. Empty: no answer had it."""
        self.found_elsewhere = False
        """An answer that does not count had the fault."""
        self.answered = 0
        """How many requests were answered, in whole or until they were cancelled."""
        self.error = ""
        """Why a request failed, if one did."""
        self.was_cut = False
        """It took too long and did not come to its end."""

    def run(self) -> bool:
        """Returns whether the fault appeared."""
        first_s = self._requests[0].at_s
        longest_s = LONGEST_TRY[0] * (self._requests[-1].at_s - first_s) + LONGEST_TRY[1]
        begin = time.monotonic() + LEAD_S
        latest = min(begin + longest_s, self._latest)
        threads = []
        for request in self._requests:
            due = begin + request.at_s - first_s
            opens = min(due - LEAD_S, latest)
            if self._stopped.wait(max(0.0, opens - time.monotonic())) or opens == latest:
                break
            thread = threading.Thread(
                target=self._exchange, args=(request, due, latest), daemon=True
            )
            thread.start()
            threads.append(thread)
        self.was_cut = not self._stopped.wait(max(0.0, latest - time.monotonic()))
        self._stop()
        for thread in threads:
            thread.join()
        return bool(self.found)

    def _exchange(self, request: ReplayedRequest, due: float, latest: float) -> None:
        answer = ReplayedAnswer()
        try:
            connection = self._server.connect(max(0.1, latest - time.monotonic()))
        except OSError as error:
            answer.error = str(error) or type(error).__name__
        else:
            with self._lock:
                self._sockets.add(connection.sock)
            own_socket = connection.sock
            try:
                self._send(request, connection, due, latest, answer)
            except (OSError, ValueError, http.client.HTTPException) as error:
                answer.error = str(error) or type(error).__name__
            finally:
                with self._lock:
                    self._sockets.discard(own_socket)
                connection.close()
                own_socket.close()
        self._end(request, answer)

    def _send(
        self,
        request: ReplayedRequest,
        connection: http.client.HTTPConnection,
        due: float,
        latest: float,
        answer: ReplayedAnswer,
    ) -> None:
        body = freshen(request.body, self._fresh) if self._fresh else request.body
        data = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        own_socket = connection.sock
        if self._stopped.wait(max(0.0, due - time.monotonic())):
            return
        connection.request(
            "POST", self._server.path, data, {**self._server.headers, **request.headers}
        )
        cancel_at = latest
        if request.cancel_after_s is not None:
            cancel_at = min(latest, time.monotonic() + request.cancel_after_s)
        try:
            own_socket.settimeout(max(0.001, cancel_at - time.monotonic()))
            response = connection.getresponse()
            answer.status = response.status
            answer.is_stream = "event-stream" in response.getheader("Content-Type", "")
            while True:
                own_socket.settimeout(max(0.001, cancel_at - time.monotonic()))
                part = response.read1(65536)
                if not part:
                    return
                answer.data += part
                if time.monotonic() >= cancel_at:
                    return
        except TimeoutError:
            if cancel_at == latest:
                raise

    def _end(self, request: ReplayedRequest, answer: ReplayedAnswer) -> None:
        """Searches an answer that is over."""
        if self._stopped.is_set():
            return
        try:
            found = self._find_fault(request, answer, self._requests)
        except Exception as error:  # what is too broken to read must not stop the replay
            found = ""
            answer.error = answer.error or f"unreadable answer: {type(error).__name__}"
        failed = answer.error or (
            f"status {answer.status}" if answer.status and answer.status != 200 else ""
        )
        counts = self._watched is None or self._watched is request
        with self._lock:
            if counts:
                self.found = self.found or found
            elif found:
                self.found_elsewhere = True
            self.error = self.error or failed
            self.answered += not failed
            self._awaited.discard(id(request))
            if not self.found and self._awaited:
                return
        self._stopped.set()

    def _stop(self) -> None:
        self._stopped.set()
        with self._lock:
            for one in self._sockets:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)


# -- prompts and answers ---------------------------------------------------------------------------


def freshen(body: dict[str, Any], word: str) -> dict[str, Any]:
    """Returns a copy whose prompt begins with this word."""
    copied: dict[str, Any] = json.loads(json.dumps(body))
    for field in PROMPT_FIELDS:
        if field in copied:
            copied[field] = put_first(copied[field], word)
            break
    return copied


def put_first(prompt: Any, word: str) -> Any:
    """Puts the word before the first text of a prompt. A prompt of token ids stays as it is."""
    if isinstance(prompt, str):
        return f"{word} {prompt}"
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, dict)):
        prompt[0] = put_first(prompt[0], word)
    elif isinstance(prompt, dict):
        for field in TEXT_FIELDS:
            if field in prompt:
                prompt[field] = put_first(prompt[field], word)
                break
    return prompt


def join_words(text: str) -> str:
    """The words of a text with a blank between two, without case and punctuation."""
    words = re.findall(r"[a-z]+", ESCAPE.sub(" ", text).lower())
    return f" {' '.join(words)} "


def find_leak(
    request: ReplayedRequest, answer: ReplayedAnswer, others: Sequence[ReplayedRequest]
) -> str:
    """Returns the session code of another request in this answer, unless its own request has it
    too."""
    words = join_words(join_event_texts(answer.list_events()))
    for other in others:
        for code in other.codes:
            if f" {code} " in words and f" {code} " not in request.words:
                return f"the session code of another request: {code}"
    return ""


def join_event_texts(events: Sequence[bytes]) -> str:
    """All that a model wrote: text, reasoning and arguments of tools, one below the other."""
    streams: dict[str, str] = {}
    for data in events:
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            continue
        for name, text in list_texts(event):
            streams[name] = streams.get(name, "") + text
    return "\n".join(streams.values())


def list_texts(event: Any) -> list[tuple[str, str]]:
    """Returns (to which text it belongs, the text) of each text in an event or a whole body."""
    if not isinstance(event, dict):
        return []
    kind = event.get("type") or ""
    if isinstance(event.get("delta"), str):  # Responses
        if kind.endswith(".delta"):
            return [(f"{kind} {event.get('output_index')}", event["delta"])]
        return []
    if kind.startswith("response.") or kind == "message_start":
        return []  # the end of a stream of Responses has all texts once more
    found: list[tuple[str, str]] = []
    place = event.get("index")
    for choice in event.get("choices") or ():
        if not isinstance(choice, dict):
            continue
        parts = choice.get("delta") or choice.get("message") or choice
        collect_texts(parts, f"choice {choice.get('index')}", found)
    collect_texts(event.get("delta"), f"block {place}", found)  # Messages
    collect_texts(event.get("content"), "content", found)
    collect_texts(event.get("output"), "output", found)
    return found


WRITTEN_FIELDS = (
    "content", "refusal", "text", "reasoning", "reasoning_content", "thinking", "arguments",
    "partial_json", "function", "function_call", "tool_calls", "input", "summary",
)  # fmt: skip


def collect_texts(value: Any, name: str, found: list[tuple[str, str]]) -> None:
    """Adds each text of a message, whose fields may have parts in one another."""
    if isinstance(value, str):
        found.append((name, value))
    elif isinstance(value, list):
        for place, part in enumerate(value):
            number = part.get("index", place) if isinstance(part, dict) else place
            collect_texts(part, f"{name} {number}", found)
    elif isinstance(value, dict):
        for field in WRITTEN_FIELDS:
            if field == "input" and isinstance(value.get(field), dict):  # a tool's, in Messages
                found.append((f"{name} {field}", json.dumps(value[field])))
            else:
                collect_texts(value.get(field), f"{name} {field}", found)


# -- the script ------------------------------------------------------------------------------------


def make_headers(template: dict[str, str], given: Sequence[str]) -> dict[str, str]:
    """The headers of each request. The key comes from the environment, never from a file."""
    key = os.environ.get(KEY_VARIABLE, "")
    headers = {}
    for name, value in template.items():
        if key or "{key}" not in value:
            headers[name] = value.replace("{key}", key)
    for line in given:
        name, _, value = line.partition(":")
        headers[name.strip()] = value.strip()
    return headers


def run_script(
    reproduction: dict[str, Any], find_fault: FindFault, words: Sequence[str] | None = None
) -> int:
    """Replays the requests several times. Returns 1 if the fault appeared, 0 if it did not."""
    parser = argparse.ArgumentParser(description=reproduction["title"])
    parser.add_argument("--host", default=reproduction["host"], help="default: %(default)s")
    parser.add_argument("--tries", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--header", action="append", default=[], metavar="NAME:VALUE")
    parser.add_argument("--insecure", action="store_true", help="check no certificate")
    options = parser.parse_args(words)
    headers = make_headers(reproduction["headers"], options.header)
    tls = ssl.create_default_context()
    if options.insecure:
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    proxy = find_environment_proxy(options.host)
    server = Server(options.host, reproduction["path"], headers, tls, proxy=proxy)
    requests = [ReplayedRequest(fields) for fields in reproduction["requests"]]
    hits = 0
    for number in range(1, options.tries + 1):
        fresh = f"({os.urandom(4).hex()})" if reproduction["fresh"] else ""
        one = Try(server, requests, find_fault, fresh)
        hits += one.run()
        failed = f" (a request failed: {one.error})" if one.error else ""
        print(f"try {number}: {one.found or 'no fault'}{failed}", flush=True)
        time.sleep(PAUSE_S)
    print(f"The fault appeared in {hits} of {options.tries} tries.")
    return 1 if hits else 0
