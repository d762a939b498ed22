"""The meter: asks the server once a second how it stands, while a run is on; in the master or the only process."""

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import gevent
import msgspec
import requests

from .gauges import PATHS, Sample, read
from .spool import Spool
from .survey import PROBE_HEADER

FILE: Final = "server_metrics.jsonl"
"""In the folder of a run: a line a look."""
EVERY_S: Final = 1.0
TIMEOUT_S: Final = 2.0
MOST_BYTES: Final = 4 << 20

logger = logging.getLogger("locust_llm")


class Meter:
    """Looks until it is closed. A server without such a page is asked no further."""

    def __init__(
        self, host: str, headers: Mapping[str, str], folder: Path, *, verify: bool | str = True,
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.samples: list[Sample] = []
        self._host, self._folder, self._clock = host, folder, clock
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.headers.update({**headers, PROBE_HEADER: "1"})
        self._session.verify = verify
        self._path = ""
        self._spool: Spool | None = None
        self._job: gevent.Greenlet | None = None

    def start(self) -> None:
        self._job = gevent.spawn(self._run)

    def _run(self) -> None:
        if not any(self._look(path) for path in PATHS):
            return
        while True:
            gevent.sleep(EVERY_S)
            self._look(self._path)

    def _look(self, path: str) -> bool:
        """Whether there was something to see."""
        at = self._clock()
        try:
            with self._session.get(self._host + path, timeout=TIMEOUT_S, allow_redirects=False, stream=True) as answer:
                text = answer.raw.read(MOST_BYTES, decode_content=True).decode("utf-8", "replace")
                sample = read(text, at) if answer.status_code == 200 else None
        except (requests.RequestException, OSError, ValueError):
            return False
        except Exception as error:  # of urllib3, below requests: a page of the server's must not end a run
            logger.debug("no sample of %s: %s", path, error)
            return False
        if sample is None:
            return False
        self._path = path
        self.samples.append(sample)
        if self._spool is None:
            self._spool = Spool(self._folder / FILE)
        self._spool.write(msgspec.json.encode(sample))
        self._spool.flush()
        return True

    def between(self, began_at: float, ended_at: float) -> list[Sample]:
        """The looks of a stretch of time (Unix seconds), and the one before it, from which its counters grow."""
        inside = [sample for sample in self.samples if began_at <= sample.at <= ended_at]
        before = [sample for sample in self.samples if sample.at < began_at]
        return [*before[-1:], *inside]

    def close(self) -> None:
        if self._job is not None:
            self._job.kill(timeout=1.0)  # to its end: its socket must not be closed later, when another has its number
        if self._spool is not None:
            self._spool.close()
        self._session.close()
