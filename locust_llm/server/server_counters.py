"""Server counters: one reading of the server's metrics on request. Two readings show what happened
between them."""

import time
from collections.abc import Mapping
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


class ServerCounters:
    """Reads the server's metrics page. A server without such a page gets only one request for
    it."""

    def __init__(self, settings: Settings, headers: Mapping[str, str]) -> None:
        self._settings = settings
        self._headers = headers
        self._line = UserConnection()
        self._paths: tuple[str, ...] = PATHS

    def read(self) -> EngineSample | None:
        for path in self._paths:
            try:
                sample = self._read(path)
            except FetchFailed:
                return None  # it may answer the next time
            if sample is not None:
                self._paths = (path,)
                return sample
        if self._paths == PATHS:
            self._paths = ()
        return None

    def _read(self, path: str) -> EngineSample | None:
        """Returns the first engine's sample, None without a page. Raises FetchFailed."""
        settings = self._settings
        at = time.time()
        verify = False if settings.insecure else find_trusted_certificates()
        url = join_server_url(settings.host, path)
        answer = fetch(
            "GET", url, self._headers, line=self._line, verify=verify, timeout_s=TIMEOUT_S
        )
        if answer.status != OK:
            return None
        samples = read_engine_samples([answer.body.decode("utf-8", "replace")], at)
        return next((sample for sample in samples if sample.engine != DCGM), None)

    def close(self) -> None:
        self._line.close()


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
