"""vLLM steps: makes random workloads for two schedulers, ours and vLLM's own, and runs the steps of
each.

A step is [tokens by request, preemptions so far, cached tokens so far, free blocks]; requests are
named by their place in the workload. Steps without work are left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from random import Random
from subprocess import PIPE, Popen
from typing import Any, Final

from locust_llm.simulator.scheduling.batching_policies import POLICIES
from locust_llm.simulator.scheduling.scheduler_queues import Scheduler, SchedulerConfig
from locust_llm.simulator.scheduling.sequence import Sequence
from locust_llm.simulator.scheduling.waiting_order import make_waiting_queue
from support.stepping import schedule

BLOCK: Final = 16
Step = list[Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """Is a request. ``at`` and ``abort_at`` count calls of `schedule`. ``during``: it is aborted
    while that step runs."""

    at: int
    prompt: list[int]
    output: list[int]
    priority: int = 0
    abort_at: int | None = None
    during: bool = False


@dataclass(frozen=True, slots=True)
class Workload:
    """Holds requests and ``settings`` under vLLM's names."""

    settings: dict[str, Any]
    asked: list[Asked]
    num_blocks: int
    caching: bool = False
    asynchronous: bool = False

    def line(self) -> str:
        """Encodes the workload for `tests/real/vllm_scheduler.py`."""
        config = self.settings | {
            "num_blocks": self.num_blocks,
            "enable_prefix_caching": self.caching,
            "max_model_len": _longest(self) + 1,
        }
        return json.dumps(
            {
                "config": config,
                "async": self.asynchronous,
                "requests": list(map(asdict, self.asked)),
            }
        )


# -- workloads -------------------------------------------------------------------------------------


def plain(random: Random) -> Workload:
    asked, at = [], 0
    for _ in range(random.randint(3, 30)):
        at += random.choice((0, 0, 1, 2, 5, 20))
        prompt = [
            random.randrange(1000)
            for _ in range(random.choice((random.randint(1, 40), random.randint(1, 300))))
        ]
        asked.append(
            Asked(at, prompt, [random.randrange(1000) for _ in range(random.randint(1, 60))])
        )
    seqs = random.randint(1, 12)
    settings = {"max_num_batched_tokens": random.randint(max(seqs, 8), 200), "max_num_seqs": seqs}
    return Workload(settings, asked, num_blocks=1000)


def pressure(random: Random, workload: Workload) -> Workload:
    """Sets blocks for slightly more than the longest request."""
    return replace(workload, num_blocks=-(-_longest(workload) // BLOCK) + random.randint(0, 12))


def threshold(random: Random, workload: Workload) -> Workload:
    return _set(
        workload,
        long_prefill_token_threshold=random.randint(1, min(60, _longest(workload))),
        long_prefill_token_threshold_adaptive=random.random() < 0.3,
    )


def whole(random: Random, workload: Workload) -> Workload:
    budget = _longest(workload) + random.randint(1, 100)
    return _set(workload, enable_chunked_prefill=False, max_num_batched_tokens=budget)


def cache(random: Random, workload: Workload) -> Workload:
    """Makes conversations: prompts continue earlier, concurrent or later requests, and some are
    equal to the last token."""
    asked: list[Asked] = []
    for request in workload.asked:
        if asked and random.random() < 0.7:
            old = random.choice(asked)
            text = old.prompt + old.output
            prompt = (
                text[: random.randint(1, len(text))]
                if random.random() < 0.4
                else text + request.prompt[:30]
            )
            same = prompt == old.prompt or random.random() < 0.3
            request = replace(
                request, prompt=prompt[:400], output=old.output if same else request.output
            )
        if asked and random.random() < 0.2:
            request = replace(random.choice(asked), at=request.at)
        asked.append(request)
    return replace(workload, asked=asked, caching=True)


def priority(random: Random, workload: Workload) -> Workload:
    asked = [replace(request, priority=random.randint(0, 3)) for request in workload.asked]
    return _set(replace(workload, asked=asked), policy="priority")


def watermark(random: Random, workload: Workload) -> Workload:
    return _set(workload, watermark=random.choice((0.01, 0.05, 0.2, 0.5)))


def active(random: Random, workload: Workload) -> Workload:
    return _set(workload, max_num_active_seqs=random.randint(1, workload.settings["max_num_seqs"]))


def aborts(random: Random, workload: Workload) -> Workload:
    asked = [
        replace(request, abort_at=request.at + random.randint(0, 30), during=random.random() < 0.5)
        if random.random() < 0.4 else request
        for request in workload.asked
    ]  # fmt: skip
    return replace(workload, asked=asked)


def asynchronous(_: Random, workload: Workload) -> Workload:
    return replace(workload, asynchronous=True)


def _longest(workload: Workload) -> int:
    """Returns the longest prompt with its answer, in tokens."""
    return max(len(request.prompt) + len(request.output) for request in workload.asked)


def _set(workload: Workload, **settings: Any) -> Workload:
    return replace(workload, settings=workload.settings | settings)


Change = Callable[[Random, Workload], Workload]
KINDS: Final[dict[str, tuple[Change, ...]]] = {
    "plain": (),
    "pressure": (pressure,),
    "threshold": (threshold,),
    "threshold, pressure": (threshold, pressure),
    "whole prompts": (whole,),
    "whole prompts, pressure": (whole, pressure),
    "whole prompts, threshold": (whole, threshold),
    "cache": (cache,),
    "cache, pressure": (cache, pressure),
    "priority": (priority,),
    "priority, pressure": (priority, pressure),
    "watermark": (pressure, watermark),
    "active sequences": (active,),
    "aborts": (aborts,),
    "aborts, cache, pressure": (aborts, cache, pressure),
    "asynchronous": (asynchronous,),
    "asynchronous, pressure": (asynchronous, pressure),
    "asynchronous, whole prompts, threshold": (asynchronous, whole, threshold),
    "asynchronous, cache, pressure": (asynchronous, cache, pressure),
    "asynchronous, priority, pressure": (asynchronous, priority, pressure),
    "asynchronous, aborts, cache, pressure": (asynchronous, aborts, cache, pressure),
    "everything": (
        cache,
        whole,
        threshold,
        pressure,
        priority,
        watermark,
        active,
        aborts,
        asynchronous,
    ),
}
"""Each kind changes a part of `plain`."""


def workloads(kind: str, count: int) -> Iterator[Workload]:
    """Returns equal workloads in each call. Each change of "everything" is made in one half of
    them."""
    for seed in range(count):
        random = Random(f"{kind} {seed}")
        workload = plain(random)
        for change in KINDS[kind]:
            if kind != "everything" or random.random() < 0.5:
                workload = change(random, workload)
        yield workload


# -- what each does with them ----------------------------------------------------------------------


def ours(workload: Workload) -> list[Step]:
    settings = dict(workload.settings)
    waiting = make_waiting_queue(settings.pop("policy", "fcfs"))
    policy = POLICIES["chunked" if settings.get("enable_chunked_prefill", True) else "mixed"]
    config = SchedulerConfig(
        kv_tokens=BLOCK * workload.num_blocks, enable_prefix_caching=workload.caching, **settings
    )
    scheduler = Scheduler(config, policy, waiting=waiting)
    scheduler.ahead = workload.asynchronous
    known: dict[tuple[int, ...], int] = {}
    sequences = [_sequence(request, known) for request in workload.asked]
    numbers = {sequence: number for number, sequence in enumerate(sequences)}
    steps: list[Step] = []
    done: list[Sequence] = []
    now = 0
    while (
        scheduler.running
        or scheduler.waiting
        or any(request.at >= now for request in workload.asked)
    ):
        for request, sequence in zip(workload.asked, sequences, strict=True):
            if request.at == now:
                scheduler.add(sequence)
        _abort(workload, sequences, scheduler, now, during=False)
        batch, work = schedule(scheduler)
        if work:
            found = {numbers[sequence]: tokens for sequence, tokens in work.items()}
            steps.append(
                [
                    found,
                    scheduler.num_preemptions,
                    scheduler.num_cache_hits,
                    scheduler.blocks.num_free,
                ]
            )
        _abort(workload, sequences, scheduler, now, during=True)
        scheduler.release(done)
        _, done = scheduler.postprocess(batch, 0.0)  # type: ignore[arg-type]
        done = done if workload.asynchronous else []
        now += 1
        if now > 20_000:
            raise RuntimeError("no end")
    return steps


def _sequence(request: Asked, known: dict[tuple[int, ...], int]) -> Sequence:
    """Makes a sequence whose blocks share keys with equal texts."""
    text = request.prompt + request.output
    keys = [
        known.setdefault(tuple(text[:end]), len(known))
        for end in range(BLOCK, len(text) + 1, BLOCK)
    ]
    return Sequence(len(request.prompt), len(request.output), keys, priority=request.priority)


def _abort(
    workload: Workload, sequences: list[Sequence], scheduler: Scheduler, now: int, *, during: bool
) -> None:
    for request, sequence in zip(workload.asked, sequences, strict=True):
        if request.abort_at == now and request.during == during and request.at <= now:
            scheduler.finish(sequence)


class Real:
    """Runs vLLM's scheduler in a process of the Python that has vLLM."""

    def __init__(self, python: str, program: str, environment: dict[str, str]) -> None:
        self._process = Popen(
            [python, program], stdin=PIPE, stdout=PIPE, text=True, env=environment, cwd="/"
        )

    def steps(self, workload: Workload) -> list[Step]:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(workload.line() + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args} ended with status {self._process.wait()}")
        steps = json.loads(line)
        for step in steps:
            step[0] = {int(name): count for name, count in step[0].items()}
        return steps

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()
