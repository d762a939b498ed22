"""The sender: what the users of one process share; gate, budget, prompts, and where finished records go.

It begins closed: users that Locust spawns before the master's order is here (a worker that joins late) wait.
"""

import time
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from locust.env import Environment

import msgspec

from .budget import Budget
from .gate import Gate
from .health import Watch
from .options import request_headers, settings_of
from .prompts import Prompts
from .record import Record
from .settings import Settings, base_url
from .survey import Survey


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What the master tells each process at the start of a run."""

    epoch: int
    """The number of the run; messages of another one are ignored."""
    settings: Settings
    survey: Survey
    worker: int = 0
    """The place of the process among the workers: its prompts are its own."""


class Sender:
    """One a process, for all runs; ``begin`` makes it ready for the next."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.settings: Settings = settings_of(environment.parsed_options)
        self._headers: tuple[int, dict[str, str]] | None = None
        self.worker = "local"
        self.epoch = 0
        self.clock_offset_s = time.time() - time.monotonic()
        self.keep: Callable[[Record], None] = lambda record: None
        """Where finished records go."""
        self._renew()

    def _renew(self) -> None:
        self.model: str | None = None
        self.closed = False
        self.turned_away = 0
        self.decoding = 0
        self.ttfts_s: list[float] = []
        """Of the first chunks since the progress line last heard of them."""
        self.gate = Gate(0)
        self.limit_number = 0
        self.budget = Budget(self._want)
        self._watch: Watch | None = None
        self.prompts: Prompts

    def begin(self, order: Order) -> None:
        """A run starts. Its limit and its first share come in messages of their own."""
        if order.epoch == self.epoch:
            return
        if self.epoch or self.closed:
            self._renew()
        self.epoch = order.epoch
        self._watch = Watch()
        self.settings = s = order.settings
        self.model = order.survey.model
        self.prompts = Prompts(
            order.survey.lengths,
            input_tokens=(s.synthetic_input_tokens_mean, s.synthetic_input_tokens_stddev),
            output_tokens=(s.output_tokens_mean, s.output_tokens_stddev),
            seed=s.random_seed,
            worker=order.worker,
        )
        self.budget.ask_again()

    @property
    def headers(self) -> dict[str, str]:
        """Of every request. Read once a run, when the first user comes: the master's options arrive with the users."""
        if self._headers is None or self._headers[0] != self.epoch:
            self._headers = self.epoch, request_headers(self._environment.parsed_options)
        return self._headers[1]

    def url(self, host: str) -> str:
        """Where chat completions go: ``host`` may be without scheme, or with ``/v1``."""
        return base_url(host or self.settings.host) + self.settings.endpoint

    def first_chunk(self, ttft_s: float) -> None:
        """Called in the event loop: must not block."""
        self.decoding += 1
        self.ttfts_s.append(ttft_s)

    def finished(self, record: Record) -> None:
        self.decoding -= bool(record.chunk_us)
        self.keep(record)

    def news(self) -> dict[str, Any]:
        """How it stands, for the progress line and for whoever waits for a smaller quota."""
        ttfts_s, self.ttfts_s = self.ttfts_s, []
        gate = self.gate
        return {
            "used": gate.used,
            "waiting": gate.waiting,
            "decoding": self.decoding,
            "ttfts_s": ttfts_s[-1000:],
            "number": self.limit_number,
        }

    def close(self) -> None:
        """Nothing new starts from here on."""
        self.closed = True
        self.gate.close()
        self.budget.close()

    def last_words(self) -> dict[str, Any]:
        """What the control of the run learns when this process is through."""
        health = None if self._watch is None else msgspec.to_builtins(self._watch.stop(self.worker))
        return {"turned_away": self.turned_away, "health": health}

    def tell(self, kind: str, **data: Any) -> None:
        """A message to whoever controls the run; none before there is a runner (then the hello will do)."""
        if self._environment.runner is not None:
            self._environment.runner.send_message(kind, {"epoch": self.epoch, **data})

    def _want(self) -> None:
        if self.epoch:
            self.tell("llm_want")


_senders: WeakKeyDictionary[Environment, Sender] = WeakKeyDictionary()


def sender_of(environment: Environment) -> Sender:
    """The sender of this process."""
    if environment not in _senders:
        _senders[environment] = Sender(environment)
    return _senders[environment]
