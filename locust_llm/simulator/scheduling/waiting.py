"""Who waits, and who of them is next: first come first served, by priority, or the tenant that was
served least."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Protocol

from .sequence import Decoding, Sequence

QUEUES: Final = ("fcfs", "priority", "fair")
PROMPT_WEIGHT: Final = 1.0
OUTPUT_WEIGHT: Final = 2.0
"""Of a token, in the service of a tenant: those of the paper's experiments, after prices of input
and output."""


class Waiting(Protocol):
    """What is used of a deque, which is the queue for first come, first served. ``popleft`` gives
    what ``[0]`` shows."""

    def append(self, sequence: Sequence, /) -> None: ...
    def appendleft(self, sequence: Sequence, /) -> None:
        """Back to where it was taken from, or preempted."""

    def extendleft(self, sequences: Iterable[Sequence], /) -> None: ...
    def popleft(self) -> Sequence: ...
    def remove(self, sequence: Sequence, /) -> None: ...
    def __getitem__(self, index: int, /) -> Sequence: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Sequence]: ...


class Priority:
    """vLLM V1's PriorityRequestQueue (0.32, vllm/v1/core/sched/request_queue.py): the lowest
    priority first, of equal ones the one that arrived first, also where it was preempted."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Sequence]] = []
        self._count = 0

    @staticmethod
    def key(sequence: Sequence) -> tuple[int, int]:
        return sequence.priority, sequence.number

    def append(self, sequence: Sequence) -> None:
        self._count += 1
        sequence.number = self._count
        self.appendleft(sequence)

    def appendleft(self, sequence: Sequence) -> None:
        heapq.heappush(self._heap, (*self.key(sequence), sequence))

    def extendleft(self, sequences: Iterable[Sequence]) -> None:
        for sequence in sequences:
            self.appendleft(sequence)

    def popleft(self) -> Sequence:
        return heapq.heappop(self._heap)[2]

    def remove(self, sequence: Sequence) -> None:
        self._heap.remove((*self.key(sequence), sequence))
        heapq.heapify(self._heap)

    def __getitem__(self, index: int) -> Sequence:
        return self._heap[0][2]

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Sequence]:
        heap = self._heap.copy()
        while heap:
            yield heapq.heappop(heap)[2]


class _Tenant:
    __slots__ = ("num_decoding", "number", "service", "waiting", "weight")

    def __init__(self, number: int, weight: float) -> None:
        self.number, self.weight = number, weight
        self.waiting: deque[Sequence] = deque()
        # what those that decode now get is in it from when they stop: see `Fair.counter`
        self.service = 0.0
        self.num_decoding = 0


class Fair:
    """The Virtual Token Counter (Sheng et al., "Fairness in Serving Large Language Models", OSDI
    2024, algorithm 2): the next one is of the tenant with the smallest counter, which is its
    service, PROMPT_WEIGHT a token of its prompts when they are admitted and OUTPUT_WEIGHT a token
    of output, divided by its weight. Who comes back after a time without waiting requests is lifted
    to the smallest counter of those that wait, so that nobody saves up service.

    What a preempted sequence computes again is no service. A round costs nothing here, however many
    decode: the scheduler says who begins and who stops, and ``decoding`` how many rounds there
    were.
    """

    decoding: Decoding

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        """``weights`` by tenant; of others 1. With 4 and 1 one gets four times the service, while
        both have requests."""
        self._weights = dict(weights or {})
        self._tenants: dict[str, _Tenant] = {}
        self._with_waiting: dict[_Tenant, None] = {}
        self._count = 0
        self._last: _Tenant | None = None  # whose request left the queue last

    # to the scheduler

    def served(self, sequence: Sequence, *, prompt_tokens: int = 0, output_tokens: int = 0) -> None:
        self._tenant(sequence).service += (
            PROMPT_WEIGHT * prompt_tokens + OUTPUT_WEIGHT * output_tokens
        )

    def joined(self, sequence: Sequence) -> None:
        tenant = self._tenant(sequence)
        tenant.num_decoding += 1
        tenant.service -= OUTPUT_WEIGHT * self.decoding.rounds

    def left(self, sequence: Sequence) -> None:
        tenant = self._tenant(sequence)
        tenant.num_decoding -= 1
        tenant.service += OUTPUT_WEIGHT * self.decoding.rounds

    def counter(self, tenant: str) -> float:
        return self._counter(self._tenants[tenant])

    # of a deque

    def append(self, sequence: Sequence) -> None:
        tenant = self._tenant(sequence)
        if not tenant.waiting and (
            others := self._with_waiting or ([self._last] if self._last else ())
        ):
            lift = min(map(self._counter, others)) - self._counter(tenant)
            tenant.service += max(0.0, lift) * tenant.weight
        tenant.waiting.append(sequence)
        self._with_waiting[tenant] = None
        self._count += 1

    def appendleft(self, sequence: Sequence) -> None:
        tenant = self._tenant(sequence)
        tenant.waiting.appendleft(sequence)
        self._with_waiting[tenant] = None
        self._count += 1

    def extendleft(self, sequences: Iterable[Sequence]) -> None:
        for sequence in sequences:
            self.appendleft(sequence)

    def popleft(self) -> Sequence:
        self._last = tenant = self._next()
        sequence = tenant.waiting.popleft()
        self._left_queue(tenant)
        return sequence

    def remove(self, sequence: Sequence) -> None:
        tenant = self._tenant(sequence)
        tenant.waiting.remove(sequence)
        self._left_queue(tenant)

    def __getitem__(self, index: int) -> Sequence:
        return self._next().waiting[0]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sequence]:
        """In the order in which they would be admitted, one after the other."""
        counters = {tenant: self._counter(tenant) for tenant in self._with_waiting}
        coming = {tenant: deque(tenant.waiting) for tenant in self._with_waiting}
        while counters:
            tenant = min(counters, key=lambda tenant: (counters[tenant], tenant.number))
            sequence = coming[tenant].popleft()
            counters[tenant] += PROMPT_WEIGHT * sequence.num_prompt_tokens / tenant.weight
            if not coming[tenant]:
                del counters[tenant]
            yield sequence

    def _left_queue(self, tenant: _Tenant) -> None:
        self._count -= 1
        if not tenant.waiting:
            del self._with_waiting[tenant]

    def _next(self) -> _Tenant:
        """Of equal ones the one that was first to ask for anything."""
        return min(self._with_waiting, key=lambda tenant: (self._counter(tenant), tenant.number))

    def _counter(self, tenant: _Tenant) -> float:
        decoded = tenant.num_decoding * self.decoding.rounds if tenant.num_decoding else 0
        return (tenant.service + OUTPUT_WEIGHT * decoded) / tenant.weight

    def _tenant(self, sequence: Sequence) -> _Tenant:
        tenant = self._tenants.get(sequence.tenant)
        if tenant is None:
            tenant = self._tenants[sequence.tenant] = _Tenant(
                len(self._tenants), self._weights.get(sequence.tenant, 1.0)
            )
        return tenant


def make_waiting_queue(name: str = "fcfs", weights: Mapping[str, float] | None = None) -> Waiting:
    """One of QUEUES. ``weights``: of `Fair`."""
    match name:
        case "priority":
            return Priority()
        case "fair":
            return Fair(weights)
        case _:
            return deque()
