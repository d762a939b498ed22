"""Disaggregated serving: some GPUs compute prompts, others decode, and the KV cache travels between
them."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Series
from dataclasses import dataclass

from .clock import EventClock, Timer
from .engine import BatchEngine, merge_engine_states
from .sequence import Sequence, SequenceStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Carries the KV cache away from one prefill engine, a request at a time."""

    bytes_per_token: int
    bytes_per_s: float
    latency_s: float = 0.0


@dataclass(slots=True)
class _Journey:
    """Locates a request: in a prefill engine (as ``prompt``, with one output token), in transfer,
    or in a decode engine."""

    prefill: BatchEngine
    prompt: Sequence
    on_token: Callable[[], None]
    timer: Timer | None = None
    decode: BatchEngine | None = None


class DisaggregatedEngine:
    """Models vLLM's disaggregated prefilling (docs/features/disagg_prefill, the Nixl connector). A
    prefill engine gets the request with max_tokens 1, and its token is discarded. Then the KV cache
    is transferred. Then a decode engine computes the prompt's last token again, which gives the
    first output token. Each request goes to the engine with the fewest requests. Left out: a
    prefill engine's blocks are free after the prompt instead of after their transfer."""

    def __init__(
        self,
        prefill: list[BatchEngine],
        decode: list[BatchEngine],
        link: Link,
        clock: EventClock,
        *,
        time_scale: float = 1.0,
    ) -> None:
        self.prefill = prefill
        self.decode = decode
        self.link = link
        self.clock = clock
        self.time_scale = time_scale
        self._free_at = dict.fromkeys(prefill, 0.0)  # by engine: when its link is
        self._loads: dict[BatchEngine, int] = dict.fromkeys([*prefill, *decode], 0)
        self._journeys: dict[Sequence, _Journey] = {}

    def add(self, sequence: Sequence, on_token: Callable[[], None], *, each: bool = True) -> None:
        engine = min(self.prefill, key=self._loads.__getitem__)
        prompt = Sequence(
            sequence.num_prompt_tokens,
            1,
            sequence.block_keys,
            priority=sequence.priority,
            tenant=sequence.tenant,
        )
        sequence.arrived_at = self.clock.time()
        journey = _Journey(engine, prompt, on_token)

        def computed() -> None:
            self._loads[engine] -= 1
            sequence.started_at = prompt.started_at
            sequence.num_cached_tokens = prompt.num_cached_tokens
            sequence.own_prefill_s = prompt.own_prefill_s
            num_bytes = sequence.num_prompt_tokens * self.link.bytes_per_token
            begins = max(self.clock.time(), self._free_at[engine])
            transfer_s = self.link.latency_s + num_bytes / self.link.bytes_per_s
            arrives = begins + transfer_s * self.time_scale
            self._free_at[engine] = arrives
            journey.timer = self.clock.call_at(arrives, arrived)

        def arrived() -> None:
            journey.timer = None
            journey.decode = min(self.decode, key=self._loads.__getitem__)
            self._loads[journey.decode] += 1
            sequence.num_transferred_tokens = sequence.num_prompt_tokens - 1
            sequence.block_keys = ()
            journey.decode.add(sequence, got_token, each=each)

        def got_token() -> None:
            if sequence.is_finished:
                self._loads[self._journeys.pop(sequence).decode or engine] -= 1
            journey.on_token()

        engine.add(prompt, computed, each=False)
        self._loads[engine] += 1
        self._journeys[sequence] = journey

    def redirect(self, sequence: Sequence, on_token: Callable[[], None]) -> None:
        self._journeys[sequence].on_token = on_token

    def abort(self, sequence: Sequence) -> None:
        journey = self._journeys.pop(sequence, None)
        if journey is None:
            return
        if journey.decode:
            journey.decode.abort(sequence)
            self._loads[journey.decode] -= 1
        elif journey.timer:
            journey.timer.cancel()
        else:
            journey.prefill.abort(journey.prompt)
            self._loads[journey.prefill] -= 1
        sequence.status = SequenceStatus.FINISHED

    def find(self, block_keys: Series[int]) -> int:
        return max(engine.find(block_keys) for engine in self.prefill)

    def forget_lateness(self) -> None:
        for engine in (*self.prefill, *self.decode):
            engine.forget_lateness()

    def state(self) -> dict[str, float]:
        """Returns the state of all engines, and the number of requests in transfer."""
        transferring = sum(journey.timer is not None for journey in self._journeys.values())
        return merge_engine_states([engine.state() for engine in (*self.prefill, *self.decode)]) | {
            "transferring": transferring
        }
