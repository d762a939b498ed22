"""Server metrics poller: reads the metrics of the server, its replicas and GPUs once a second
during a run, in the master or the only process.

Each page has its own greenlet, connection and time limits. So a slow page holds up neither the load
nor the other pages. A page is read in pieces, between which the others have their turn. A failure
is a sample too, with its reason.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import gevent
import msgspec
from gevent.event import Event

from locust_llm.client.request_exchange import UserConnection
from locust_llm.files.buffered_file import BufferedFile
from locust_llm.records.server_metrics_history import (
    SERVER,
    SERVER_METRICS,
    EngineHistory,
    describe_server_history,
)
from locust_llm.records.server_metrics_parser import DCGM, PATHS, EngineSample, read_engine_samples
from locust_llm.server.http_get import FetchFailed, fetch
from locust_llm.settings.server_address import join_server_url
from locust_llm.text.sanitise import NAME_BYTES, sanitise_text

logger = logging.getLogger("locust_llm")

EVERY_S: Final = 1.0
"""The time between two samples."""
TIMEOUT_S: Final = 2.0
"""The time-out of a whole response."""
SETTLE_EVERY_S: Final = 0.2
"""The time between two readings while the server still works behind the last request."""
PIECE_BYTES: Final = 1 << 16
"""So much of a page is read without a pause: a fraction of a millisecond."""


class MetricsPage:
    """A page of metrics on its server."""

    def __init__(
        self, address: str, headers: Mapping[str, str], path: str = "", source: str = ""
    ) -> None:
        """``path`` is empty while it is unknown. ``source``: see EngineSample."""
        self.address, self.path, self.headers, self.source = address, path, headers, source
        self.line = UserConnection()
        self.looked = Event()
        """Set after the first request of the page, whatever came of it."""
        self.has_engine = False


class MetricsPoller:
    """Polls until it is closed. A server without a metrics page is not asked again; a page that the
    user named is."""

    def __init__(
        self, host: str, headers: Mapping[str, str], folder: Path, urls: Sequence[str] = (), *,
        replicas: Sequence[str] = (),
        verify: bool | str = True, clock: Callable[[], float] = time.time,
        add_note: Callable[[str], object] = lambda text: None, simulated: bool = False,
        whose: str = SERVER,
    ) -> None:  # fmt: skip
        """``headers`` are the requests' own, with the key: only ``host`` and ``replicas`` get them.
        ``urls`` are further pages; without any, the replicas' pages are read.

        The server's own page is not read where one of these has an engine, as it would be a
        replica's page. ``simulated``: the engine is the simulator, whatever the names of its
        metrics. ``whose`` names the owner of ``host``'s metrics.
        """
        self.history = EngineHistory()
        self._own = MetricsPage(host, headers)
        homes = {_split(replica)[0] for replica in (host, *replicas)}
        urls = urls or [join_server_url(replica, "/metrics") for replica in replicas]
        self._named = [MetricsPage(*_split(url), source=_source(url)) for url in urls]
        for page in self._named:
            page.headers = headers if page.address in homes else {}
        self._verify, self._folder, self._clock, self._add_note = verify, folder, clock, add_note
        self._simulated, self.whose = simulated, whose
        self._spool: BufferedFile | None = None
        self._unwritable = False
        """The file cannot be made: the samples are in memory alone."""
        self._jobs: list[gevent.Greenlet] = []

    def start(self, spawn: Callable[..., gevent.Greenlet] = gevent.spawn) -> None:
        self._jobs = [spawn(self._poll, page) for page in self._named] + [spawn(self._poll_own)]

    def _poll(self, page: MetricsPage) -> None:
        try:
            while True:
                self._look(page, page.path)
                gevent.sleep(EVERY_S)
        except FetchFailed as error:
            what = page.source or f"the {self.whose}'s /metrics"
            self._add_note(f"WARNING: {what} are no longer read: {error}")

    def _poll_own(self) -> None:
        for page in self._named:
            page.looked.wait()
        if any(page.has_engine for page in self._named):
            return
        own = self._own
        try:
            path_found = next((path for path in PATHS if self._look(own, path)), "")
        except FetchFailed as error:
            self._add_note(f"WARNING: the {self.whose}'s /metrics are no longer read: {error}")
            return
        if path_found:
            own.path = path_found
            gevent.sleep(EVERY_S)
            self._poll(own)

    def _look(self, page: MetricsPage, path: str) -> bool:
        """Whether there was a sample. Raises FetchFailed for a response that is too large."""
        at = self._clock()
        failure = ""
        too_large: FetchFailed | None = None
        samples: list[EngineSample] = []
        try:
            answer = fetch(
                "GET",
                join_server_url(page.address, path),
                page.headers,
                line=page.line,
                verify=self._verify,
                timeout_s=TIMEOUT_S,
            )
            if answer.status == 200:
                samples = read_engine_samples(_pieces(answer.body), at, page.source)
                failure = "" if samples else "no known metric"
            else:
                failure = f"HTTP {answer.status}"
        except FetchFailed as error:
            failure = sanitise_text(f"{error.outcome}: {error}", most=NAME_BYTES)
            too_large = error if error.outcome == "too_large" else None
        # a mistake in its address shows at once
        if failure and page.source and not page.looked.is_set():
            logger.warning(
                f"The metrics of {page.source} cannot be read: {failure}; retrying every second"
            )
        if failure and (page.path or page.source):
            samples = [EngineSample(at=at, engine="", source=page.source, failure=failure)]
        self._keep(page, samples)
        page.looked.set()
        if too_large is not None:  # once a second that would be a load of its own
            raise too_large
        return not failure

    def _keep(self, page: MetricsPage, samples: Sequence[EngineSample]) -> None:
        for sample in samples:
            page.has_engine = page.has_engine or sample.engine not in ("", DCGM)
            self.history.add(sample)
            if self._spool is None and not self._unwritable:
                self._make_spool()
            if self._spool is not None:
                self._spool.write(msgspec.json.encode(sample))
        if self._spool is not None:
            self._spool.flush()

    def _make_spool(self) -> None:
        try:
            self._spool = BufferedFile(self._folder / SERVER_METRICS)
        except OSError as error:
            self._unwritable = True
            self._add_note(
                f"WARNING: the {self.whose}'s metrics are not stored: {error.strerror or error}."
            )

    def remarks(
        self, loaded: Sequence[tuple[float, float]], prefill_limit: int | None
    ) -> Iterator[str]:
        """What the metrics show of the stretches (Unix seconds) in which requests were sent."""
        return describe_server_history(
            self.history, loaded, prefill_limit, whose=self.whose, simulated=self._simulated
        )

    def read_last(self, settle_s: float = 0.0) -> None:
        """Read once more when the last request is over, as the server's counters would lack the
        last second, and again for up to ``settle_s`` while the server runs requests. Nothing is read
        after it."""
        self._stop()
        pages = [page for page in (*self._named, self._own) if page.has_engine]
        for page in pages:
            page.line.close()
            page.line = UserConnection()
        until = time.monotonic() + settle_s
        self._look_at_last(pages)
        while self._is_busy() and time.monotonic() < until:
            gevent.sleep(SETTLE_EVERY_S)
            self._look_at_last(pages)

    def _look_at_last(self, pages: Sequence[MetricsPage]) -> None:
        # a timeout of joinall counts from when the event loop last turned
        with gevent.Timeout(TIMEOUT_S, False):
            gevent.joinall([gevent.spawn(self._try_to_look, page) for page in pages])

    def _is_busy(self) -> bool:
        """Whether a server ran or held requests at its last reading."""
        last = [samples[-1] for samples in self.history.by_name.values() if samples]
        return any(sample.running or sample.waiting for sample in last)

    def _try_to_look(self, page: MetricsPage) -> None:
        with suppress(FetchFailed):
            self._look(page, page.path)

    def _stop(self) -> None:
        for job in self._jobs:
            # to its end: its socket must not be closed later, when another has its number
            job.kill(timeout=1.0)

    def close(self) -> None:
        self._stop()
        if self._spool is not None:
            self._spool.close()
        for page in (*self._named, self._own):
            page.line.close()


def _split(url: str) -> tuple[str, dict[str, str], str]:
    """(address, no headers, path with its query)."""
    parts = urlsplit(url)
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{parts.netloc}", {}, parts.path + query


def _source(url: str) -> str:
    """``replica:8000`` for ``http://replica:8000/metrics``."""
    return url.partition("://")[2].removesuffix("/metrics")


def _pieces(body: bytes) -> Iterator[str]:
    """Pieces that end where a line does, if its lines are not longer. After each piece the other
    pages have their turn."""
    begin = 0
    while begin < len(body):
        end = body.rfind(b"\n", begin, begin + PIECE_BYTES) + 1 or begin + PIECE_BYTES
        yield body[begin:end].decode("utf-8", "replace")
        begin = end
        gevent.sleep(0)
