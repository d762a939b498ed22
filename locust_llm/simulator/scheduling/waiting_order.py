"""Waiting order: choose the next sequence by arrival, by priority, or by the least served
tenant."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Protocol

from .sequence import Decoding, Sequence

QUEUES: Final = ("fcfs", "priority", "fair")
PROMPT_WEIGHT: Final = 1.0
OUTPUT_WEIGHT: Final = 2.0
"""Each token adds its weight to the tenant's service. The weights come from the paper's
experiments, which use prices of input and output."""


class Waiting(Protocol):
    """Has the methods of a deque that the scheduler uses. A deque itself serves first come, first
    served. ``popleft`` returns the item that ``[0]`` shows."""

    def append(self, sequence: Sequence, /) -> None: ...
    def appendleft(self, sequence: Sequence, /) -> None:
        """Puts a sequence back that was taken from the queue, or preempted."""

    def extendleft(self, sequences: Iterable[Sequence], /) -> None: ...
    def popleft(self) -> Sequence: ...
    def remove(self, sequence: Sequence, /) -> None: ...
    def __getitem__(self, index: int, /) -> Sequence: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Sequence]: ...


class Priority:
    """Models vLLM V1's PriorityRequestQueue (0.32, vllm/v1/core/sched/request_queue.py): the lowest
    priority comes first, then the earliest arrival, even after a preemption."""

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
        self.number = number
        self.weight = weight
        self.waiting: deque[Sequence] = deque()
        # what those that decode now get is in it from when they stop: see `Fair.counter`
        self.service = 0.0
        self.num_decoding = 0


class Fair:
    """Models the Virtual Token Counter (Sheng et al., "Fairness in Serving Large Language Models",
    OSDI 2024, algorithm 2): the tenant with the smallest counter comes next. A counter is the
    tenant's service divided by its weight: PROMPT_WEIGHT per prompt token when admitted,
    OUTPUT_WEIGHT per output token. A tenant that returns after a time without waiting requests is
    lifted to the smallest counter of the waiting tenants, so that no tenant saves up service.

    Repeated work of a preempted sequence is no service. The cost of a round does not depend on the
    number of decodes: the scheduler reports joins and leaves, and ``decoding`` counts the rounds.
    """

    decoding: Decoding

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        """Takes ``weights`` by tenant, with a default of 1. With 4 and 1, one tenant gets four
        times the service of the other while both have requests."""
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
        others = self._with_waiting or ([self._last] if self._last else ())
        if others and not tenant.waiting:
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
        """Yields the sequences in the order of their admission."""
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
        """Returns the tenant with the smallest counter, among equal ones the first known."""
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
    """``weights`` are for `Fair`."""
    match name:
        case "priority":
            return Priority()
        case "fair":
            return Fair(weights)
        case _:
            return deque()
