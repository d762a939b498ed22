"""Added levels: drives the load of each level in blocks, directly and through the gateway, and keeps
of each answer what the arithmetic needs.

Two blocks, one with and one without the gateway, are a pair; which comes first is drawn. So what
drifts on the machine meets both. Answers are taken apart after their block, when nothing is timed.
"""

import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Final, NamedTuple

import gevent
import numpy as np

from locust_llm.client.request_exchange import UserConnection
from locust_llm.records.outcomes import OK

from .added_time import AnswerParts, TimedBlock, estimate_added_time, measure_parts
from .gateway_client import Exchange, GatewayAddress, exchange_script
from .gateway_result import (
    FIRST_TOKEN,
    FURTHER_TOKEN,
    GAP,
    SETUP,
    WHOLE_ANSWER,
    AddedLevel,
    AddedTime,
)
from .process_cost import ProcessUse
from .upstream_script import UpstreamScript

TTFT_MS: Final = 20.0
GAP_MS: Final = 20.0
TOKENS: Final = 32
JITTER: Final = 0.3
BLOCK_S: Final = 2.0
WARMUP_S: Final = 0.5
SETTLE_S: Final = 0.05
MIN_PAIRS: Final = 5
SETUP_REQUESTS: Final = 20
SHARE_FAILED: Final = 0.1
"""A level of which more fails is the last."""
SHARE_SENT: Final = 0.8
"""A level of which this client sends less is no level of this rate."""
STREAM_QUANTITIES: Final = (FIRST_TOKEN, FURTHER_TOKEN, GAP, WHOLE_ANSWER)

ReadUse = Callable[[], ProcessUse | None]


class BlockAnswers(NamedTuple):
    """What is kept of the answers of one block."""

    parts: tuple[AnswerParts, ...]
    requests: int
    words: int
    failed: int
    lost: int
    """So many words of the upstream did not come, of answers that ended well."""
    elapsed_s: float


class LevelRun(NamedTuple):
    """A measured level, and what it means for the next ones."""

    level: AddedLevel
    lost: int
    """Lost words through the gateway."""
    direct_failed: int
    last: bool
    """No higher level is worth its time: why is in ``note``, or p99 passes the limit."""
    note: str = ""


class LevelRunner:
    """Measures levels for one gateway. Connections are kept from block to block."""

    def __init__(
        self,
        direct: GatewayAddress,
        through: GatewayAddress,
        run: str,
        read_use: ReadUse,
        limit_ms: float,
        random: Random,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = gevent.sleep,
    ) -> None:
        """``run`` makes the ids of this runner's requests its own."""
        self._addresses = {False: direct, True: through}
        self._run = run
        self._read_use = read_use
        self._limit_ms = limit_ms
        self._random = random
        self._clock = clock
        self._sleep = sleep
        self._lines: dict[bool, list[UserConnection]] = {False: [], True: []}
        self._sent = 0

    def close(self) -> None:
        for lines in self._lines.values():
            for line in lines:
                line.close()

    # -- levels

    def measure_streams(self, streams: int, seconds: float) -> LevelRun:
        """So many streams at once, for about so long."""
        return self._measure(
            AddedLevel(streams=streams),
            STREAM_QUANTITIES,
            seconds,
            lambda through, block_s: self._run_streams(through, streams, block_s),
        )

    def measure_rate(self, requests_per_s: float, seconds: float) -> LevelRun:
        """So many short answers in one piece per second."""
        return self._measure(
            AddedLevel(requests_per_s=requests_per_s),
            (WHOLE_ANSWER,),
            seconds,
            lambda through, block_s: self._run_rate(through, requests_per_s, block_s),
        )

    def measure_setup(self) -> AddedTime | None:
        """New connections with a short answer each, one after the other."""
        blocks = list[TimedBlock]()
        for pair, through in self._order_blocks(MIN_PAIRS):
            exchanges = list[Exchange]()
            for _ in range(SETUP_REQUESTS):
                line = UserConnection()
                exchanges.append(self._exchange(line, through, self._make_short(), stream=False))
                line.close()
            blocks.append(TimedBlock(pair, through, keep_answers(exchanges, 0.0).parts))
        return estimate_added_time(blocks, SETUP, self._make_generator())

    def _measure(
        self,
        level: AddedLevel,
        quantities: Sequence[str],
        seconds: float,
        run_block: Callable[[bool, float], list[Exchange]],
    ) -> LevelRun:
        for through in (False, True):
            run_block(through, WARMUP_S)
        pairs = max(MIN_PAIRS, round(seconds / (2 * BLOCK_S)))
        block_s = min(BLOCK_S, seconds / (2 * pairs))
        blocks = list[TimedBlock]()
        kept: dict[bool, list[BlockAnswers]] = {False: [], True: []}
        cpu_s: float | None = 0.0
        memory_mb: float | None = None
        for pair, through in self._order_blocks(pairs):
            before = self._read_use() if through else None
            began = self._clock()
            exchanges = run_block(through, block_s)
            elapsed_s = self._clock() - began
            after = self._read_use() if through else None
            if through and cpu_s is not None:
                cpu_s = (
                    None if before is None or after is None else cpu_s + after.cpu_s - before.cpu_s
                )
                memory_mb = memory_mb if after is None else max(memory_mb or 0.0, after.memory_mb)
            answers = keep_answers(exchanges, elapsed_s)
            kept[through].append(answers)
            blocks.append(TimedBlock(pair, through, answers.parts))
            self._sleep(SETTLE_S)
        generator = self._make_generator()
        added = [estimate_added_time(blocks, quantity, generator) for quantity in quantities]
        measured = AddedLevel(
            streams=level.streams,
            requests_per_s=level.requests_per_s,
            added=tuple(one for one in added if one is not None),
            failed=sum(one.failed for one in kept[True]),
            cpu_ms_per_request=divide_cost(cpu_s, sum(one.requests for one in kept[True]), 1e3),
            cpu_us_per_token=divide_cost(cpu_s, sum(one.words for one in kept[True]), 1e6)
            if level.streams
            else None,
            memory_mb=memory_mb,
        )
        return judge_level(measured, kept, self._limit_ms)

    def _order_blocks(self, pairs: int) -> list[tuple[int, bool]]:
        """(pair, through) of each block, in a drawn order within each pair."""
        order = list[tuple[int, bool]]()
        for pair in range(pairs):
            first = self._random.random() < 0.5
            order += [(pair, first), (pair, not first)]
        return order

    def _make_generator(self) -> np.random.Generator:
        return np.random.default_rng(self._random.getrandbits(32))

    # -- blocks

    def _run_streams(self, through: bool, streams: int, block_s: float) -> list[Exchange]:
        """Each of the streams begins anew until the time is over."""
        until = self._clock() + block_s
        exchanges = list[Exchange]()
        lines = self._take_lines(through, streams)

        def send(line: UserConnection, begin_s: float) -> None:
            self._sleep(begin_s)
            while True:
                script = UpstreamScript(
                    id=self._next_id(), ttft_ms=TTFT_MS, gap_ms=GAP_MS, tokens=TOKENS, jitter=JITTER
                )
                exchanges.append(self._exchange(line, through, script))
                if self._clock() >= until:
                    return

        starts = [self._random.random() * min(block_s / 2, TOKENS * GAP_MS / 1e3) for _ in lines]
        gevent.joinall(
            [gevent.spawn(send, *pair) for pair in zip(lines, starts, strict=True)],
            raise_error=True,
        )
        return exchanges

    def _run_rate(self, through: bool, requests_per_s: float, block_s: float) -> list[Exchange]:
        """Requests begin at random (Poisson) moments, whatever becomes of the others."""
        until = self._clock() + block_s
        exchanges = list[Exchange]()
        free = self._lines[through]

        def send() -> None:
            line = free.pop() if free else UserConnection()
            exchanges.append(self._exchange(line, through, self._make_short(), stream=False))
            free.append(line)

        sending = list[gevent.Greenlet]()
        at = self._clock()
        while True:
            at += self._random.expovariate(requests_per_s)
            if at >= until:
                break
            self._sleep(max(0.0, at - self._clock()))
            sending.append(gevent.spawn(send))
        gevent.joinall(sending, raise_error=True)
        return exchanges

    def _take_lines(self, through: bool, count: int) -> list[UserConnection]:
        lines = self._lines[through]
        lines += [UserConnection() for _ in range(count - len(lines))]
        return lines[:count]

    def _exchange(
        self, line: UserConnection, through: bool, script: UpstreamScript, *, stream: bool = True
    ) -> Exchange:
        return exchange_script(line, self._addresses[through], script, stream=stream)

    def _make_short(self) -> UpstreamScript:
        return UpstreamScript(id=self._next_id(), ttft_ms=0, gap_ms=0, tokens=1)

    def _next_id(self) -> str:
        self._sent += 1
        return f"{self._run}-{self._sent}"


def keep_answers(exchanges: Sequence[Exchange], elapsed_s: float) -> BlockAnswers:
    """Takes the answers of a block apart."""
    parts = list[AnswerParts]()
    words = failed = lost = 0
    for exchange in exchanges:
        times = exchange.times()
        words += len(times.words)
        if exchange.outcome != OK:
            failed += 1
            continue
        lost += exchange.script.tokens - len(times.words)
        measured = measure_parts(times, exchange.sent_ns, exchange.connect_s)
        if measured is not None:
            parts.append(measured)
    return BlockAnswers(tuple(parts), len(exchanges), words, failed, lost, elapsed_s)


def judge_level(
    level: AddedLevel, kept: dict[bool, list[BlockAnswers]], limit_ms: float
) -> LevelRun:
    """Whether a higher level is worth its time."""
    requests = sum(one.requests for one in kept[True])
    lost = sum(one.lost for one in kept[True])
    direct_failed = sum(one.failed for one in kept[False])
    note = ""
    watched = (FIRST_TOKEN, FURTHER_TOKEN) if level.streams else (WHOLE_ANSWER,)
    found = [level.find(quantity) for quantity in watched]
    beyond = any(added is not None and added.p99_ms > limit_ms for added in found)
    if level.failed > SHARE_FAILED * requests:
        note = f"{level.failed} of {requests} requests failed through the gateway"
    elif level.requests_per_s:
        elapsed_s = sum(one.elapsed_s for one in kept[True])
        rate = requests / elapsed_s if elapsed_s else 0.0
        if rate < SHARE_SENT * level.requests_per_s:
            note = f"only {rate:.0f} of {level.requests_per_s:g} requests/s were possible"
    return LevelRun(level, lost, direct_failed, bool(note) or beyond, note)


def divide_cost(cpu_s: float | None, count: int, scale: float) -> float | None:
    return None if cpu_s is None or not count else cpu_s / count * scale
