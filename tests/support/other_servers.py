"""Other servers: share nothing with the simulator. They have another event loop, other schedulers,
and other laws of a step's cost.

A client's view of them shows the errors of a twin.
"""

import heapq
import json
import math
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from random import Random
from subprocess import PIPE, Popen
from typing import ClassVar, Final

from locust_llm.lab.probe.episode_requests import ProbeEpisode, ProbeResult
from locust_llm.lab.probe.probe_experiments import ProbeBounds, schedule_episodes
from locust_llm.lab.twin.server_observations import ObservedRequest, ObservedStage
from locust_llm.records.outcomes import OK

STEP_SIGMA: Final = 0.03
"""The logarithm of a step's time has this standard deviation."""
NETWORK_S: Final = 0.0002
"""A chunk is late by this mean time."""


class Job:
    """Is a request inside a server."""

    __slots__ = ("on_done", "on_first", "output", "prompt", "ready", "sent_at", "token_at")

    def __init__(self, prompt: int, output: int, sent_at: float) -> None:
        self.prompt, self.output, self.sent_at = prompt, output, sent_at
        self.ready = 0
        """This many prompt tokens are computed."""
        self.token_at: list[float] = []
        self.on_first: Callable[[float], None] = lambda at: None
        self.on_done: Callable[[float], None] = lambda at: None

    @property
    def context(self) -> int:
        return self.ready + len(self.token_at)

    @property
    def is_done(self) -> bool:
        return len(self.token_at) >= self.output


class OtherServer(ABC):
    """Runs a step loop: ready requests wait, and a step advances some of them."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    @abstractmethod
    def front_s(self, job: Job) -> float:
        """Returns the time from the send until the scheduler has it."""

    @abstractmethod
    def step(self) -> tuple[float, list[Job]]:
        """Chooses the work of a step. Returns its time, and the requests with a token at its
        end."""

    def call_at(self, at: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (at, next(self._numbers), call))

    def send(self, job: Job) -> None:
        self.call_at(job.sent_at + self.front_s(job), lambda: self.waiting.append(job))

    def run(self) -> None:
        """Runs until nothing is left to do."""
        while self._timers or self.waiting or self.running:
            if not self.waiting and not self.running:
                self.now = max(self.now, self._timers[0][0])
            self._let_come()
            if self.waiting or self.running:
                self._advance()

    def _let_come(self) -> None:
        while self._timers and self._timers[0][0] <= self.now:
            heapq.heappop(self._timers)[2]()

    def _advance(self) -> None:
        took_s, ahead = self.step()
        self.now += took_s * self.random.lognormvariate(0.0, STEP_SIGMA)
        self._let_come()
        for job in ahead:
            job.token_at.append(self.now)
            if len(job.token_at) == 1:
                job.on_first(self.now)
            if job.is_done:
                self._end(job)
                job.on_done(self.now)

    def _end(self, job: Job) -> None:
        self.running.remove(job)


class Chunking(OtherServer):
    """Has one budget of tokens per step: first for running requests, then for waiting ones, with
    prompts in chunks."""

    def __init__(self, seed: int, budget: int, most_running: int) -> None:
        super().__init__(seed)
        self.budget, self.most_running = budget, most_running

    def step(self) -> tuple[float, list[Job]]:
        left = self.budget
        chunks = list[tuple[Job, int]]()
        decoding = list[Job]()
        for job in self.running:
            if job.ready < job.prompt:
                new = min(left, job.prompt - job.ready)
                chunks.append((job, new))
            else:
                decoding.append(job)
                new = 1
            left -= new
        while self.waiting and left > 0 and len(self.running) < self.most_running:
            job = self.waiting.pop(0)
            new = min(left, job.prompt)
            self.running.append(job)
            chunks.append((job, new))
            left -= new
        took_s = self.step_s(chunks, decoding)
        for job, new in chunks:
            job.ready += new
        return took_s, decoding + [job for job, _ in chunks if job.ready >= job.prompt]

    @abstractmethod
    def step_s(self, chunks: Sequence[tuple[Job, int]], decoding: Sequence[Job]) -> float:
        """Returns the time without noise."""


class Roofline(Chunking):
    """Takes as long as all arithmetic of a step, or all its memory traffic, whichever is longer.
    Arithmetic is in whole tiles of 64 tokens."""

    TILE: Final = 64

    def __init__(self, seed: int, budget: int, most_running: int, speed: float) -> None:
        super().__init__(seed, budget, most_running)
        self.speed = speed
        """This is the chip's speed relative to an H100."""

    def front_s(self, job: Job) -> float:
        return 0.006 + 2e-6 * job.prompt

    def step_s(self, chunks: Sequence[tuple[Job, int]], decoding: Sequence[Job]) -> float:
        tokens = len(decoding) + sum(new for _, new in chunks)
        read = sum(job.context for job in decoding) + sum(job.ready + new for job, new in chunks)
        pairs = sum(job.context for job in decoding)
        pairs += sum(new * (job.ready + new / 2) for job, new in chunks)
        tiles = math.ceil(tokens / self.TILE) * self.TILE
        compute_s = tiles * 16e9 / 450e12 + pairs * 5.2e5 / 220e12
        memory_s = 16e9 / 2.4e12 + read * 131_072 / 2.4e12
        return 0.0012 + max(compute_s, memory_s) / self.speed


class PerRequestOverhead(Chunking):
    """Resembles vLLM V1 on a machine with a slow CPU. Each step prepares its batch request by
    request, decodes run in batches of recorded sizes, and each new token becomes text before the
    next step."""

    SIZES: Final = (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 128, 256)

    def __init__(self, seed: int, budget: int, most_running: int, speed: float) -> None:
        super().__init__(seed, budget, most_running)
        self.speed = speed

    def front_s(self, job: Job) -> float:
        return 0.004 + 4e-6 * job.prompt

    def step_s(self, chunks: Sequence[tuple[Job, int]], decoding: Sequence[Job]) -> float:
        cpu_s = 0.0015 + 9e-5 * (len(decoding) + 2 * len(chunks))
        read = sum(job.context for job in decoding)
        if not chunks:
            size = next(size for size in self.SIZES if size >= len(decoding))
            return cpu_s + (0.0062 + 3e-5 * size + 6e-8 * read) / self.speed
        tokens = len(decoding) + sum(new for _, new in chunks)
        pairs = sum(new * (job.ready + new / 2) for job, new in chunks)
        linear_s = 0.0085 + max(0, tokens - 120) * 4.2e-5
        return cpu_s + (linear_s + 6e-8 * read + pairs * 2.6e-9) / self.speed


class Experts(Chunking):
    """A mixture of experts: the more tokens a step has, the more experts it reads, until all of
    them are read; and a message between chips for each step and each token."""

    NUM_EXPERTS, CHOSEN = 64, 6

    def __init__(self, seed: int, budget: int, most_running: int, speed: float) -> None:
        super().__init__(seed, budget, most_running)
        self.speed = speed

    def front_s(self, job: Job) -> float:
        return 0.003 + 3e-6 * job.prompt

    def step_s(self, chunks: Sequence[tuple[Job, int]], decoding: Sequence[Job]) -> float:
        tokens = len(decoding) + sum(new for _, new in chunks)
        read = sum(job.context for job in decoding) + sum(job.ready + new for job, new in chunks)
        pairs = sum(new * (job.ready + new / 2) for job, new in chunks)
        read_share = 1 - (1 - self.CHOSEN / self.NUM_EXPERTS) ** tokens
        weights_s = (4e9 + 24e9 * read_share) / 2.4e12
        compute_s = tokens * 1.4e10 / 300e12 + pairs * 4e5 / 200e12
        between_s = 0.0008 + 2.5e-6 * tokens
        return 0.0015 + between_s + (max(weights_s, compute_s) + read * 6e-8) / self.speed


class VllmScheduled(OtherServer):
    """Runs vLLM's own scheduler in a process of a Python that has vLLM. Its steps have the costs
    of ``PerRequestOverhead``. One process has one such server at a time."""

    PROGRAM: Final = Path(__file__).parents[1] / "real" / "vllm_steps_server.py"
    _process: ClassVar[Popen[str] | None] = None

    def __init__(self, seed: int, budget: int, most_running: int, speed: float) -> None:
        super().__init__(seed)
        self.cost = PerRequestOverhead(seed, budget, most_running, speed)
        self._jobs: dict[str, Job] = {}
        self._ids = count()
        settings = {
            "max_num_batched_tokens": budget,
            "max_num_seqs": most_running,
            "max_model_len": 65_000,
            "num_blocks": 200_000,
            "enable_prefix_caching": False,
        }
        self._write({"settings": settings})

    def _write(self, value: object) -> None:
        process = VllmScheduled._process
        if process is None:
            quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_TARGET_DEVICE": "cpu"}
            process = VllmScheduled._process = Popen(
                [os.environ["VLLM_PYTHON"], str(self.PROGRAM)],
                stdin=PIPE,
                stdout=PIPE,
                text=True,
                env=os.environ | quiet,
            )
        assert process.stdin is not None
        process.stdin.write(json.dumps(value) + "\n")
        process.stdin.flush()

    def front_s(self, job: Job) -> float:
        return self.cost.front_s(job)

    def step(self) -> tuple[float, list[Job]]:
        came = {str(next(self._ids)): job for job in self.waiting}
        self.waiting = []
        self.running += came.values()
        self._jobs |= came
        self._write([[number, job.prompt, job.output] for number, job in came.items()])
        assert self._process is not None
        assert self._process.stdout is not None
        work = json.loads(self._process.stdout.readline())
        chunks = list[tuple[Job, int]]()
        decoding = list[Job]()
        for number, tokens in work.items():
            job = self._jobs[number]
            if job.ready < job.prompt:
                chunks.append((job, tokens))
            else:
                decoding.append(job)
        took_s = self.cost.step_s(chunks, decoding)
        for job, new in chunks:
            job.ready += new
        return took_s, decoding + [job for job, _ in chunks if job.ready >= job.prompt]


class PaddedBatches(OtherServer):
    """Runs static batches: waiting requests, up to a number, begin together, with prompts as long
    as the longest of them. The next batch begins when the last has ended. Requests that end sooner
    are still computed."""

    def __init__(self, seed: int, most_running: int, speed: float) -> None:
        super().__init__(seed)
        self.most_running, self.speed = most_running, speed
        self._size, self._rounds, self._longest = 0, 0, 0

    def front_s(self, job: Job) -> float:
        return 0.005 + 2e-6 * job.prompt

    def step(self) -> tuple[float, list[Job]]:
        if not self.running:
            self.running = self.waiting[: self.most_running]
            del self.waiting[: self.most_running]
            self._size = len(self.running)
            self._rounds = 0
            self._longest = max(job.prompt for job in self.running)
            for job in self.running:
                job.ready = job.prompt
            padded = self._size * self._longest
            took_s = 0.009 + padded * 4.0e-5 + self._size * self._longest**2 * 1.2e-9
            return took_s / self.speed, list(self.running)
        self._rounds += 1
        context = self._size * (self._longest + self._rounds)
        took_s = 0.0075 + 6e-5 * self._size + 5.5e-8 * context
        return took_s / self.speed, list(self.running)


# -- what a client sees ----------------------------------------------------------------------------

Lengths = Callable[[Random], tuple[int, int]]
FEWEST: Final = 48
ROUNDS: Final = 6
"""A stage has this many requests of each user."""
STAGGER_S: Final = 0.01


def see(job: Job, random: Random, zero: float = 0.0) -> ObservedRequest:
    """Returns requests with late chunks, of which none overtakes an earlier one."""
    last = 0.0
    times = list[float]()
    for at in job.token_at:
        last = max(last, at - zero + random.expovariate(1 / NETWORK_S))
        times.append(last)
    return ObservedRequest(job.sent_at - zero, tuple(times), job.prompt, job.output)


def closed_loop(
    server: OtherServer,
    users: int,
    lengths: Lengths,
    seed: int,
    requests: int = 0,
    limit: float = math.inf,
    spread_s: float = 0.0,
) -> ObservedStage:
    """Runs a closed loop. ``limit`` is a gate's: at most so many requests await their first token.
    ``spread_s`` is the time over which the users begin. 0: a moment apart."""
    random = Random(seed)
    most = requests or max(FEWEST, ROUNDS * users)
    held = deque[float]()
    sent = list[tuple[Job, float]]()
    prefilling = 0

    def ask(at: float) -> None:
        held.append(at)
        release(at)

    def release(at: float) -> None:
        nonlocal prefilling
        while held and prefilling < limit and len(sent) < most:
            job = Job(*lengths(random), at)
            job.on_first, job.on_done = begun, ask
            sent.append((job, held.popleft()))
            prefilling += 1
            server.send(job)

    def begun(at: float) -> None:
        nonlocal prefilling
        prefilling -= 1
        release(at)

    apart_s = spread_s / users or STAGGER_S
    for user in range(users):
        server.call_at(user * apart_s, lambda at=user * apart_s: ask(at))
    server.run()
    seen = tuple(see(job, random)._replace(held_s=job.sent_at - asked_at) for job, asked_at in sent)
    return ObservedStage(users, 0.0, seen)


def open_loop(
    server: OtherServer, rate: float, lengths: Lengths, seed: int, requests: int
) -> ObservedStage:
    """Sends so many Poisson arrivals in the time that they take on average."""
    random = Random(seed)
    sent = list[Job]()
    for at in sorted(random.uniform(0.0, requests / rate) for _ in range(requests)):
        sent.append(Job(*lengths(random), at))
        server.send(sent[-1])
    server.run()
    return ObservedStage(0, rate, tuple(see(job, random) for job in sent))


def probe(
    server: Callable[[int], OtherServer], seed: int, most_len: int = 32_000
) -> list[ProbeResult]:
    """Runs the episodes of a probe, each on an idle server."""
    random = Random(seed)
    schedule = schedule_episodes(ProbeBounds(longest_tokens=most_len))
    found = list[ProbeResult]()
    episode = next(schedule)
    zero = 0.0
    for number in count():
        came = list(_episode(server(random.randrange(1 << 30)), episode, number, zero, random))
        found += came
        zero = max(one.chunk_at[-1] for one in came) + 0.05
        try:
            episode = schedule.send(came)
        except StopIteration:
            return found
    raise AssertionError


def _episode(
    server: OtherServer, episode: ProbeEpisode, number: int, zero: float, random: Random
) -> Iterator[ProbeResult]:
    jobs = [Job(one.input_tokens, one.output_tokens, one.at_s) for one in episode.requests]
    for job in jobs:
        server.send(job)
    server.run()
    ended = sorted(zip(episode.requests, jobs, strict=True), key=lambda one: one[1].token_at[-1])
    for shot, job in ended:
        seen = see(job, random, -zero)
        yield ProbeResult(
            episode=number, kind=episode.kind, round=episode.round, role=shot.role, outcome=OK,
            asked_tokens=shot.input_tokens, input_tokens=shot.input_tokens,
            output_tokens=shot.output_tokens, asked_output_tokens=shot.output_tokens,
            sent_at=seen.sent_at, chunk_at=seen.token_at,
        )  # fmt: skip
