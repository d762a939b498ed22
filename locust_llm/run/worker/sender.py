"""The sender: what the users of one process share; gate, budget, prompts, and where finished records go.

It begins closed: users that Locust spawns before the master's order is here (a worker that joins late) wait.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, Final
from weakref import WeakKeyDictionary

from locust.env import Environment

import msgspec
from gevent.event import Event

from locust_llm.client.api import extra_inputs
from locust_llm.client.gate import Gate, GateClosed
from locust_llm.client.reader import new_reader, reader_failure, reads_so_far
from locust_llm.core.failures import FailureKinds
from locust_llm.core.phases import PROFILING, label_of
from locust_llm.core.record import Record
from locust_llm.core.settings import Settings, base_url
from locust_llm.load import tokens
from locust_llm.load.conversation import Sessions
from locust_llm.load.lengths import independent, mix, normal
from locust_llm.load.prompts import Prompts
from locust_llm.run.clock_sync import Clock, boot_id
from locust_llm.run.gate_quotas import Lease
from locust_llm.run.options import request_headers, settings_of
from locust_llm.run.protocol import Order

from .alarm import Alarm
from .health import HealthMonitor
from .permits import Permit, PermitQueue, SessionQueue

logger = logging.getLogger("locust_llm")

SOON_S: Final = 0.3
"""Users are added for arrivals that are due within it and find none free."""
LAGS: Final = 200
"""How many lags of the event loop, the last ones, the news are about: ten seconds of them."""


class Sender:
    """One a process, for all runs; ``begin`` makes it ready for the next."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.settings: Settings = settings_of(environment.parsed_options)
        self._headers: tuple[int, dict[str, str]] | None = None
        self._strayed = -1
        """The run of which it was said that another address is not followed."""
        self.worker = "local"
        self.epoch = 0
        self._alarm: Alarm | None = None
        self.clock = Clock()
        self.shares = False
        """This process has a part of the limit only, as there are others."""
        self.stir = Event()
        """Set when the control should hear at once how this process stands."""
        self.keep: Callable[[Record], None] = lambda record: None
        """Where finished records go."""
        self._renew()

    def _renew(self) -> None:
        self.model: str | None = None
        self.length_way: tuple[str, ...] = ()
        self.closed = False
        self.turned_away = 0
        self.decoding = 0
        self.done = 0
        """Requests that the gate had let through, and that are over."""
        self.ttfts_s: list[float] = []
        """Of the first chunks since the progress line last heard of them."""
        self.gate = Gate(0)
        self.lease = Lease(self.gate, self.stir)
        self.count: Callable[[int, int, int], object] = lambda admitted, begun, ended: None
        """Hears how many requests the gate has let through, how many sessions were begun, and how many have ended."""
        self.answered_at = time.monotonic()
        """When the control last answered."""
        self.budget = PermitQueue(self._want)
        self.supply = SessionQueue(self._want_sessions)
        if self.shares:
            self.share()
        self._missed = 0
        self._watch: HealthMonitor | None = None
        self._stage = 0
        self._stage_watch: HealthMonitor | None = None
        self.kinds = FailureKinds()
        """Of failures, for Locust's table, and for a sample of each."""
        self.dice = Random()
        """Spreads retries."""
        self.prompts: Prompts
        self.sessions: Sessions
        self.extra: dict[str, Any] = {}
        """More fields of every request's body."""
        self.counts_sessions = False
        """Sessions are dealt out by the control: each of the dataset once, or so many as were asked for."""

    def share(self) -> None:
        """This process is one of several: nothing is admitted but by leave of the control."""
        self.shares = True
        self.gate.lapses_at = -math.inf
        self.gate.on_change = self.lease.changed
        self.gate.on_enter = self.supply.on_change = self._counts

    def _counts(self) -> None:
        self.count(self.gate.admitted, self.supply.begun, self.supply.ended)

    def told(self, at: float | None = None, unix_s: float | None = None, **quota: Any) -> None:
        """A quota, and perhaps the answer to the word of ``at``: then the control's clock said ``unix_s``."""
        if at is not None and unix_s is not None:
            self.answered_at = time.monotonic()
            self.clock.heard(at, unix_s, self.answered_at)
        self.lease.told(**quota, at=at)

    @property
    def clock_offset_s(self) -> float:
        """What to add to a stamp of this process to get Unix time, as the control has it."""
        return self.clock.offset_s

    def begin(self, order: Order) -> bool:
        """A run starts, if it is another one. Its limit and its first share come in messages of their own."""
        if order.epoch == self.epoch:
            return False
        if self.epoch or self.closed:
            self._renew()
        self.epoch = order.epoch
        new_reader()
        self._watch = HealthMonitor()
        self.settings = s = order.settings
        self.model = order.survey.model
        self.length_way = order.survey.length_way
        self.prompts = Prompts(
            order.survey.lengths,
            mix(s.seq_dist) if s.seq_dist else None,
            input_tokens=(s.synthetic_input_tokens_mean, s.synthetic_input_tokens_stddev),
            output_tokens=(s.output_tokens_mean, s.output_tokens_stddev),
            seed=s.random_seed,
            worker=order.worker,
            system_tokens=s.shared_system_prompt_length or 0,
            prefixes=s.num_prefix_prompts or 0,
            prefix_tokens=s.prefix_prompt_length or 0,
            tokenizer=tokens.load(s.tokenizer) if s.tokenizer else None,
        )
        self.sessions = Sessions(
            self.prompts,
            turns=(s.session_turns_mean, s.session_turns_stddev),
            delay_ms=(s.session_turn_delay_mean, s.session_turn_delay_stddev),
            seed=s.random_seed,
            worker=order.worker,
        )
        self.extra = extra_inputs(s.extra_inputs) if s.extra_inputs else {}
        self.counts_sessions = bool(s.input_file or s.num_sessions)
        self._random = Random(None if s.random_seed is None else f"{s.random_seed}/{order.worker}/cancel")
        if order.boot and order.boot == boot_id():
            self.clock.same(order.clock_offset_s)
        self.answered_at = time.monotonic()
        self.stir.set()
        self.budget.ask_again()
        return True

    def stage(self, number: int, input_tokens: float | None) -> None:
        """This stage begins (0: none), with prompts of so many tokens; of the one before it the health is told."""
        if number == self._stage:
            return
        if self._stage_watch is not None:
            health = msgspec.to_builtins(self._stage_watch.stop(self.worker, self._stage))
            self.tell("llm_health", health=health)
        self._stage, self._stage_watch = number, HealthMonitor() if number else None
        s = self.settings
        if input_tokens is not None:
            sizes = (input_tokens, s.synthetic_input_tokens_stddev), (s.output_tokens_mean, s.output_tokens_stddev)
            self.prompts.resize(independent(normal(*sizes[0]), normal(*sizes[1])))

    @property
    def headers(self) -> dict[str, str]:
        """Of every request. Read once a run, when the first user comes: the master's options arrive with the users."""
        if self._headers is None or self._headers[0] != self.epoch:
            self._headers = self.epoch, request_headers(self._environment.parsed_options)
        return self._headers[1]

    @property
    def address(self) -> str:
        """The server of the run, which was asked at its start: whatever ``host`` a class or Locust has since then."""
        return self.settings.host or base_url(self._environment.host or "")

    @property
    def url(self) -> str:
        """Where chat completions go."""
        return self.address + self.settings.endpoint

    def keeps_address(self, host: str | None, whose: str) -> None:
        """Say so, once a run, where somebody (Locust's ``POST /user`` can) has set another."""
        if host and self.address and self._strayed != self.epoch and base_url(host) != self.address:
            self._strayed = self.epoch
            logger.warning(
                f"{whose} has the host {base_url(host)}, which is not followed: the requests of this run go to "
                f"{self.address}, the address that was checked at its start"
            )

    def first_chunk(self, ttft_s: float) -> None:
        """Called in the event loop: must not block."""
        self.decoding += 1
        self.ttfts_s.append(ttft_s)

    def finished(self, record: Record) -> None:
        self.decoding -= bool(record.chunk_us)
        self.keep(record)

    def arrive(self, phase: str, started_at: float, due: Iterable[tuple[float, int | None, bytes | None]]) -> None:
        """Arrivals of the schedule, in seconds after its start, which was at ``started_at`` (Unix seconds)."""
        zero = started_at - self.clock_offset_s
        self.budget.arrive(Permit(phase, zero + at_s, slot, item) for at_s, slot, item in due)

    def wait_until(self, at: float) -> None:
        """Sleep until a moment of the monotonic clock. Raises GateClosed if the run ends before."""
        if self._alarm is None:  # after any fork
            self._alarm = Alarm()
        self._alarm.wait_until(at)
        if self.closed:
            raise GateClosed

    def item(self, phase: str) -> bytes | None:
        """What the next session says, packed; None: something made up. Raises GateClosed when there is none any more."""
        if not self.counts_sessions:
            return None
        begin = self.supply.take()
        while begin.phase != phase:  # of the warmup, and it is over
            begin = self.supply.take()
        return begin.item

    def session_ended(self, permit: Permit, left: int, *, dealt: bool) -> None:
        """``left``: turns that were not asked."""
        if permit.item is not None:
            if left:  # the schedule had counted them
                self.tell("llm_back", phase=permit.phase, count=left)
        elif dealt:
            self.supply.end(permit.phase)

    def cancel_after_s(self, phase: str) -> float | None:
        """Drawn for each request: seconds after which it is cancelled on purpose."""
        rate = self.settings.request_cancellation_rate
        if rate is None or label_of(phase) != PROFILING or self._random.random() * 100 >= rate:
            return None
        return self.settings.request_cancellation_delay

    def spare(self, phase: str) -> None:
        """Others wait for a share of ``phase``."""
        if self.budget.phase == phase and (left := self.budget.spare()):
            self.tell("llm_back", phase=phase, count=left)

    def spare_sessions(self, phase: str) -> None:
        """Others wait for sessions of ``phase``."""
        items, told = self.supply.spare(phase), self.supply.told()
        self.tell("llm_spared_sessions", phase=phase, items=items, begun=told.begun, ended=told.ended)

    def give_back(self, users: int) -> None:
        """What none of so many users here can send."""
        phase = self.budget.phase
        comes = self.settings.open_loop and self.settings.users is None  # then users come where arrivals wait
        if not comes and (strays := self.budget.strays(users)):
            due = [((stray.due_at or 0.0) + self.clock_offset_s, stray.slot, stray.item) for stray in strays]
            self.tell("llm_arrivals_back", phase=phase, due=due)
        if users == 0 and (left := self.budget.surrender()):
            self.tell("llm_back", phase=phase, count=left)

    def over(self, phase: str) -> None:
        """Nothing new starts in this phase."""
        if self.budget.phase == phase and (left := self.budget.surrender(arrivals=True)):
            self.tell("llm_back", phase=phase, count=left)

    def news(self) -> dict[str, Any]:
        """How it stands, for the progress line and for whoever waits for a smaller quota."""
        ttfts_s, self.ttfts_s = self.ttfts_s, []
        return {
            **self.lease.stand(),
            "admitted": self.gate.admitted,
            "over": self.done,
            "decoding": self.decoding,
            "ttfts_s": ttfts_s[-1000:],
            "unreserved": self.budget.unreserved(time.monotonic() + SOON_S),
            "sessions": self.supply.told(),
            "clock_error_s": self.clock.error_s,
            "reads": reads_so_far(),
            "failure": reader_failure(),
            "health": None if self._watch is None else msgspec.to_builtins(self._watch.so_far(self.worker, lags=LAGS)),
        }

    def close(self) -> None:
        """Nothing new starts from here on."""
        self.closed = True
        self.gate.close()
        self._missed += self.budget.close()
        self.supply.close()
        if self._alarm is not None:
            self._alarm.wake_all()

    def last_words(self) -> dict[str, Any]:
        """What the control of the run learns when this process is through."""
        health = None if self._watch is None else msgspec.to_builtins(self._watch.stop(self.worker))
        return {
            "turned_away": self.turned_away, "missed": self._missed, "health": health, "failure": reader_failure(),
        }  # fmt: skip

    def tell(self, kind: str, **data: Any) -> None:
        """A message to whoever controls the run; none before there is a runner (then the hello will do)."""
        if self._environment.runner is not None:
            self._environment.runner.send_message(kind, {"epoch": self.epoch, **data})

    def _want(self) -> None:
        if self.epoch:
            self.tell("llm_want")

    def _want_sessions(self) -> None:
        if self.epoch:
            self.tell("llm_want_sessions")


_senders: WeakKeyDictionary[Environment, Sender] = WeakKeyDictionary()


def sender_of(environment: Environment) -> Sender:
    """The sender of this process."""
    if environment not in _senders:
        _senders[environment] = Sender(environment)
    return _senders[environment]
