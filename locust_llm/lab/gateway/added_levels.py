"""Added levels: drives the load of each level in blocks, directly and through the gateways, and keeps
of each answer what the arithmetic needs.

A round has one block of each gateway and one without any, in a drawn order. So what drifts on the
machine meets all of them. Answers are taken apart after their block, when nothing is timed.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Final, NamedTuple

import gevent
import numpy as np

from locust_llm.client.request_exchange import UserConnection
from locust_llm.records.outcomes import OK
from locust_llm.text.format import format_duration

from .added_time import (
    AnswerParts,
    TimedBlock,
    estimate_added_time,
    measure_parts,
    measure_whole,
)
from .gateway_client import DIRECT, Exchange, GatewayAddress, exchange_script
from .gateway_result import (
    EMBEDDINGS,
    FIRST_TOKEN,
    FURTHER_TOKEN,
    GAP,
    QUANTITIES,
    SETUP,
    WHOLE_ANSWER,
    AddedLevel,
    AddedTime,
)
from .process_cost import ProcessUse, UseOfBlocks
from .upstream_script import UpstreamScript

TTFT_MS: Final = 20.0
GAP_MS: Final = 20.0
TOKENS: Final = 32
JITTER: Final = 0.3
BLOCK_S: Final = 2.0
WARMUP_S: Final = 0.5
SETTLE_S: Final = 0.05
MIN_ROUNDS: Final = 5
REQUESTS_OF_BLOCK: Final = 20
"""So many requests, one after the other, are a block without load."""
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
    overtime: float = 0.0
    """The last request began so much later than the block should end, as a share of the block."""


class GatewayWay(NamedTuple):
    """A gateway, and how to ask what its process has used."""

    address: GatewayAddress
    read_use: ReadUse


class LevelRun(NamedTuple):
    """A measured level of one gateway, and what it means for the next ones."""

    level: AddedLevel
    lost: int
    """Lost words through the gateway."""
    direct_failed: int
    stop: str = ""
    """Why no higher level is worth its time. Empty: one is."""
    beyond: bool = False
    """It is because p99 passes the limit."""


class LevelRunner:
    """Measures levels for several gateways. Connections are kept from block to block."""

    def __init__(
        self,
        direct: GatewayAddress,
        gateways: Sequence[GatewayWay],
        run: str,
        limit_ms: float,
        random: Random,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = gevent.sleep,
    ) -> None:
        """``run`` makes the ids of this runner's requests its own."""
        self._addresses = {DIRECT: direct}
        self._addresses |= {way.address.name: way.address for way in gateways}
        self._read_use = {way.address.name: way.read_use for way in gateways}
        self._run = run
        self._limit_ms = limit_ms
        self._random = random
        self._clock = clock
        self._sleep = sleep
        self._lines: dict[str, list[UserConnection]] = {name: [] for name in self._addresses}
        self._sent = 0

    def close(self) -> None:
        for lines in self._lines.values():
            for line in lines:
                line.close()

    # -- levels

    def measure_streams(
        self, streams: int, seconds: float, names: Sequence[str]
    ) -> dict[str, LevelRun]:
        """So many streams at once, for about so long over all blocks. ``names``: of the gateways
        that take part."""
        return self._measure(
            AddedLevel(streams=streams),
            STREAM_QUANTITIES,
            seconds,
            names,
            lambda name, block_s: self._run_streams(name, streams, block_s),
        )

    def measure_rate(
        self, requests_per_s: float, seconds: float, names: Sequence[str]
    ) -> dict[str, LevelRun]:
        """So many short answers in one piece per second."""
        return self._measure(
            AddedLevel(requests_per_s=requests_per_s),
            (WHOLE_ANSWER,),
            seconds,
            names,
            lambda name, block_s: self._run_rate(name, requests_per_s, block_s),
        )

    def measure_without_load(self, names: Sequence[str]) -> dict[str, tuple[AddedTime, ...]]:
        """New connections with a short answer each, and embeddings, one after the other."""
        found: dict[str, tuple[AddedTime, ...]] = dict.fromkeys(names, ())
        for quantity, run_block in ((SETUP, self._run_new), (EMBEDDINGS, self._run_embeddings)):
            parts: dict[str, list[tuple[AnswerParts, ...]]] = {}
            for name in self._order_blocks((DIRECT, *names), MIN_ROUNDS):
                parts.setdefault(name, []).append(run_block(name))
            for name in names:
                blocks = _pair_blocks(parts[DIRECT], parts[name])
                added = estimate_added_time(blocks, quantity, self._make_generator())
                found[name] += () if added is None else (added,)
        return found

    def _measure(
        self,
        level: AddedLevel,
        quantities: Sequence[str],
        seconds: float,
        names: Sequence[str],
        run_block: Callable[[str, float], list[Exchange]],
    ) -> dict[str, LevelRun]:
        ways = (DIRECT, *names)
        for name in ways:
            run_block(name, WARMUP_S)
        rounds = max(MIN_ROUNDS, round(seconds / (len(ways) * BLOCK_S)))
        block_s = min(BLOCK_S, seconds / (len(ways) * rounds))
        kept: dict[str, list[BlockAnswers]] = {name: [] for name in ways}
        uses = {name: UseOfBlocks() for name in names}
        for name in self._order_blocks(ways, rounds):
            before = self._read_use[name]() if name in uses else None
            began = self._clock()
            exchanges = run_block(name, block_s)
            if name in uses:
                uses[name].add(before, self._read_use[name]())
            overtime = measure_overtime(exchanges, began, block_s)
            kept[name].append(keep_answers(exchanges, overtime))
            self._sleep(SETTLE_S)
        runs = dict[str, LevelRun]()
        for name in names:
            blocks = _pair_blocks(
                [one.parts for one in kept[DIRECT]], [one.parts for one in kept[name]]
            )
            generator = self._make_generator()
            added = [estimate_added_time(blocks, quantity, generator) for quantity in quantities]
            most_cpu_s = uses[name].most_cpu_s
            cpu_s = uses[name].cpu_s if most_cpu_s is None else most_cpu_s
            measured = AddedLevel(
                streams=level.streams,
                requests_per_s=level.requests_per_s,
                added=tuple(one for one in added if one is not None),
                failed=sum(one.failed for one in kept[name]),
                cpu_ms_per_request=divide_cost(cpu_s, sum(one.requests for one in kept[name]), 1e3),
                cpu_us_per_token=divide_cost(cpu_s, sum(one.words for one in kept[name]), 1e6)
                if level.streams
                else None,
                cpu_is_most=most_cpu_s is not None,
                memory_mb=uses[name].memory_mb,
            )
            runs[name] = judge_level(measured, kept[DIRECT], kept[name], self._limit_ms)
        return runs

    def _order_blocks(self, ways: Sequence[str], rounds: int) -> Iterator[str]:
        """Each way once in each round, in a drawn order."""
        for _ in range(rounds):
            yield from self._random.sample(ways, len(ways))

    def _make_generator(self) -> np.random.Generator:
        return np.random.default_rng(self._random.getrandbits(32))

    # -- blocks

    def _run_streams(self, name: str, streams: int, block_s: float) -> list[Exchange]:
        """Each of the streams begins anew until the time is over."""
        until = self._clock() + block_s
        exchanges = list[Exchange]()
        lines = self._take_lines(name, streams)

        def send(line: UserConnection, begin_s: float) -> None:
            self._sleep(begin_s)
            while True:
                script = UpstreamScript(
                    id=self._next_id(), ttft_ms=TTFT_MS, gap_ms=GAP_MS, tokens=TOKENS, jitter=JITTER
                )
                exchanges.append(self._exchange(line, name, script))
                if self._clock() >= until:
                    return

        starts = [self._random.random() * min(block_s / 2, TOKENS * GAP_MS / 1e3) for _ in lines]
        gevent.joinall(
            [gevent.spawn(send, *pair) for pair in zip(lines, starts, strict=True)],
            raise_error=True,
        )
        return exchanges

    def _run_rate(self, name: str, requests_per_s: float, block_s: float) -> list[Exchange]:
        """Requests begin at random (Poisson) moments, whatever becomes of the others."""
        until = self._clock() + block_s
        exchanges = list[Exchange]()
        free = self._lines[name]

        def send() -> None:
            line = free.pop() if free else UserConnection()
            exchanges.append(self._exchange(line, name, self._make_short(), stream=False))
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

    def _run_new(self, name: str) -> tuple[AnswerParts, ...]:
        exchanges = list[Exchange]()
        for _ in range(REQUESTS_OF_BLOCK):
            line = UserConnection()
            exchanges.append(self._exchange(line, name, self._make_short(), stream=False))
            line.close()
        return keep_answers(exchanges).parts

    def _run_embeddings(self, name: str) -> tuple[AnswerParts, ...]:
        (line,) = self._take_lines(name, 1)
        exchanges = [
            self._exchange(line, name, self._make_short(), kind="embeddings", stream=False)
            for _ in range(REQUESTS_OF_BLOCK)
        ]
        return keep_whole_answers(exchanges)

    def _take_lines(self, name: str, count: int) -> list[UserConnection]:
        lines = self._lines[name]
        lines += [UserConnection() for _ in range(count - len(lines))]
        return lines[:count]

    def _exchange(
        self,
        line: UserConnection,
        name: str,
        script: UpstreamScript,
        *,
        kind: str = "chat",
        stream: bool = True,
    ) -> Exchange:
        return exchange_script(line, self._addresses[name], script, kind=kind, stream=stream)

    def _make_short(self) -> UpstreamScript:
        return UpstreamScript(id=self._next_id(), ttft_ms=0, gap_ms=0, tokens=1)

    def _next_id(self) -> str:
        self._sent += 1
        return f"{self._run}-{self._sent}"


def measure_overtime(exchanges: Sequence[Exchange], began_s: float, block_s: float) -> float:
    """How late the last request was sent: see BlockAnswers."""
    last_s = max((exchange.sent_ns for exchange in exchanges), default=0) / 1e9
    return max(0.0, last_s - began_s - block_s) / block_s


def keep_answers(exchanges: Sequence[Exchange], overtime: float = 0.0) -> BlockAnswers:
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
    return BlockAnswers(tuple(parts), len(exchanges), words, failed, lost, overtime)


def keep_whole_answers(exchanges: Iterable[Exchange]) -> tuple[AnswerParts, ...]:
    """The times of answers that hold no words."""
    good = [exchange for exchange in exchanges if exchange.outcome == OK]
    measured = [measure_whole(exchange.times(), exchange.sent_ns) for exchange in good]
    return tuple(one for one in measured if one is not None)


def _pair_blocks(
    direct: Sequence[tuple[AnswerParts, ...]], through: Sequence[tuple[AnswerParts, ...]]
) -> list[TimedBlock]:
    blocks = [TimedBlock(number, False, parts) for number, parts in enumerate(direct)]
    return blocks + [TimedBlock(number, True, parts) for number, parts in enumerate(through)]


def judge_level(
    level: AddedLevel,
    direct: Sequence[BlockAnswers],
    through: Sequence[BlockAnswers],
    limit_ms: float,
) -> LevelRun:
    """Whether a higher level is worth its time."""
    requests = sum(one.requests for one in through)
    lost = sum(one.lost for one in through)
    direct_failed = sum(one.failed for one in direct)
    stop = ""
    watched = (FIRST_TOKEN, FURTHER_TOKEN) if level.streams else (WHOLE_ANSWER,)
    found = [level.find(quantity) for quantity in watched]
    beyond = [added for added in found if added is not None and added.p99_ms > limit_ms]
    if level.failed > SHARE_FAILED * requests:
        stop = f"{level.failed} of {requests} requests failed through the gateway"
    elif level.requests_per_s:
        # not the requests over the time: in a short block chance decides how many there are
        overtime = sum(one.overtime for one in through) / len(through)
        rate = level.requests_per_s / (1 + overtime)
        if rate < SHARE_SENT * level.requests_per_s:
            stop = f"only {rate:.0f} of {level.requests_per_s:g} requests/s were possible"
    if stop or not beyond:
        return LevelRun(level, lost, direct_failed, stop)
    p99, limit = (format_duration(ms / 1e3) for ms in (beyond[0].p99_ms, limit_ms))
    stop = f"p99 added to the {QUANTITIES[beyond[0].quantity]} is {p99}, above --limit {limit}"
    return LevelRun(level, lost, direct_failed, stop, beyond=True)


def divide_cost(cpu_s: float | None, count: int, scale: float) -> float | None:
    return None if cpu_s is None or not count else cpu_s / count * scale
