"""Server counters: one reading of the server's metrics on request. Two readings show what happened
between them."""

import time
from collections.abc import Callable, Mapping
from typing import Final

from locust_llm.client.request_exchange import UserConnection
from locust_llm.client.tls_settings import find_trusted_certificates
from locust_llm.records.server_metrics_history import counter_increase
from locust_llm.records.server_metrics_parser import DCGM, PATHS, EngineSample, read_engine_samples
from locust_llm.server.http_get import OK, FetchFailed, fetch
from locust_llm.settings.run_options import Settings
from locust_llm.settings.server_address import join_server_url

TIMEOUT_S: Final = 2.0
"""A fetch of a whole page takes at most this time in seconds."""


class MetricsReader:
    """Reads a server's metrics page on request. A server without such a page gets only one request
    for it."""

    def __init__(self, settings: Settings, headers: Mapping[str, str]) -> None:
        self._settings = settings
        self._headers = headers
        self._line = UserConnection()
        self._paths: tuple[str, ...] = PATHS

    def read_page(self, knows: Callable[[str], object]) -> str:
        """The first page with a content that ``knows`` accepts. Empty: there is none now."""
        for path in self._paths:
            try:
                page = self._fetch(path)
            except FetchFailed:
                return ""  # it may answer the next time
            if knows(page):
                self._paths = (path,)
                return page
        if self._paths == PATHS:
            self._paths = ()
        return ""

    def _fetch(self, path: str) -> str:
        """Empty: there is no page. Raises FetchFailed."""
        settings = self._settings
        verify = False if settings.insecure else find_trusted_certificates()
        url = join_server_url(settings.host, path)
        answer = fetch(
            "GET", url, self._headers, line=self._line, verify=verify, timeout_s=TIMEOUT_S
        )
        return answer.body.decode("utf-8", "replace") if answer.status == OK else ""

    def close(self) -> None:
        self._line.close()


class ServerCounters:
    """Reads the engine of a server's metrics page."""

    def __init__(self, settings: Settings, headers: Mapping[str, str]) -> None:
        self._reader = MetricsReader(settings, headers)

    def read(self) -> EngineSample | None:
        """None: there is no page with an engine now."""
        at = time.time()
        return find_engine(self._reader.read_page(find_engine), at)

    def close(self) -> None:
        self._reader.close()


def find_engine(page: str, at: float = 0.0) -> EngineSample | None:
    """The first engine of a metrics page."""
    samples = read_engine_samples([page], at)
    return next((sample for sample in samples if sample.engine != DCGM), None)


def found_other_requests(
    before: EngineSample | None, after: EngineSample | None, own_tokens: int | None
) -> bool | None:
    """Returns whether the counters grew by more than one request of ``own_tokens`` tokens, or
    another request was there before it. None: the server counts neither requests nor prompt
    tokens."""
    if before is None or after is None:
        return None
    if before.running or before.waiting:
        return True
    first_tokens = counter_increase([before, after], "ttft_count")
    if first_tokens is not None:
        return first_tokens > 1
    prompt_tokens = counter_increase([before, after], "cache_queries")
    if prompt_tokens is None or own_tokens is None:
        return None
    return prompt_tokens > own_tokens
