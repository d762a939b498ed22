"""Settings: what was asked of a run, frozen (fields.py), and what follows. What makes a run impossible: validation.py."""

from functools import cached_property
from typing import Final

import msgspec

from locust_llm.load.mix import weights
from locust_llm.load.pictures import Asked, rates
from locust_llm.slo import rules as slo_rules
from locust_llm.slo.reading import Reader, reader
from locust_llm.slo.rules import Rules

from .arms import CANDIDATE, PAIR, PAIRS, Block, Changes, changes, order
from .options.fields import Fields
from .sweep import CONCURRENCY, INPUT, PREFILL, RATE, REPEAT, Sweep, sweep

LOOK_STEP: Final = 1.5
"""Each look comes after so many times the time of the one before."""
POOLING: Final = ("embeddings", "rerank")
"""Endpoint types whose answers are vectors or scores, in one piece: nothing is generated."""
SESSION_HEADERS: Final = {
    "aiperf": "X-Session-Affinity", "mlperf": "X-Session-ID", "dynamo": "X-Dynamo-Session-ID",
}  # fmt: skip
"""By whose it is: in each of these goes the id of the session."""
OUR_LOCUSTFILES: Final = ("", "run.py")
"""What they send the settings say; others may have prompts of their own."""
MAX_COLUMNS: Final = 50
"""Percentiles in a table."""


class Settings(Fields, frozen=True, kw_only=True, omit_defaults=False, dict=True):
    """What was asked, and what follows from it."""

    @cached_property
    def looks(self) -> tuple[float, ...]:
        """When the rules are judged, in seconds of profiling; the last one is when the run ends at the latest."""
        return look_times(self.run_time_s, self.until_decided_s)

    @property
    def has_own_code(self) -> bool:
        """The locustfile is the user's."""
        return self.locustfile not in OUR_LOCUSTFILES

    @property
    def longest_s(self) -> float | None:
        """How long profiling may last."""
        return self.looks[-1] if self.looks else None

    @cached_property
    def rules(self) -> Rules:
        """Of ``slo``, ``slo_preset`` and ``goodput``, parsed once."""
        return slo_rules.resolve(self.slo, self.slo_preset, self.goodput)

    @property
    def reader(self) -> Reader:
        """Whom tokens are in time for. Raises ValueError."""
        return reader(self.reading_pace, self.token_deadline)

    @property
    def columns(self) -> tuple[float, ...]:
        """The percentiles of the tables: each once, and no more than fit."""
        return tuple(dict.fromkeys(p for p in self.percentiles if 0 < p <= 99.9))[:MAX_COLUMNS]

    @cached_property
    def models(self) -> tuple[str, ...]:
        """Asked for by name: of the mix, else the one; none: the server's first is taken. Raises ValueError."""
        if self.model_mix:
            return tuple(weights(self.model_mix))
        return (self.model,) if self.model else ()

    @property
    def generates(self) -> bool:
        """Answers have tokens of output, streamed or not."""
        return self.endpoint_type not in POOLING

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of the server, or of its replicas."""
        return self.hosts or (self.host,)

    @property
    def texts(self) -> int:
        """Of a synthetic request: prompts, or inputs with the query of rerank."""
        return self.batch_size_text + (self.endpoint_type == "rerank")

    @property
    def media(self) -> Asked:
        """Of synthetic pictures and sounds. Raises ValueError."""
        return Asked(
            width=(self.image_width_mean, self.image_width_stddev),
            height=(self.image_height_mean, self.image_height_stddev),
            images=self.image_batch_size,
            formats=("png", "jpeg") if self.image_format == "random" else (self.image_format,),
            seconds=(self.audio_length_mean, self.audio_length_stddev),
            rates=rates(self.audio_sample_rates),
            sounds=self.audio_batch_size,
            seed=self.random_seed or 0,
        )

    @property
    def open_loop(self) -> bool:
        """Requests come by a schedule, whatever the server does."""
        rates = self.request_rate or self.request_rate_series or self.user_centric_rate or self.sweeps(RATE)
        return bool(rates or self.fixed_schedule)

    @property
    def max_users_asked(self) -> int | None:
        """Largest number of users of the run; None: not given."""
        stages = self.staged
        return int(stages.values[-1]) if stages is not None and self.sweeps(CONCURRENCY) else self.users

    @property
    def first_users(self) -> int | None:
        """Users at the start: a warmup or a first stage may have its own number. None: not given."""
        if self.warmup_concurrency:
            return self.warmup_concurrency
        stages = self.staged
        return int(stages.values[0]) if stages is not None and self.sweeps(CONCURRENCY) else self.users

    def sweeps(self, axis: str) -> bool:
        """Its stages differ in this."""
        return (self.sweep or "").partition("=")[0].strip() == axis

    @property
    def staged(self) -> Sweep | None:
        """The stages that were asked for; None without any. Raises ValueError."""
        if self.sweep:
            return sweep(self.sweep)
        if self.compares:
            return Sweep(PAIR, tuple(map(float, range(1, len(self.blocks) + 1))))
        return Sweep(REPEAT, tuple(map(float, range(1, self.repeats + 1)))) if self.repeats > 1 else None

    @property
    def traced_share(self) -> float:
        """Of the requests, those that ask the server to trace them; the receiver of its spans wants all."""
        return 1.0 if self.otlp_receiver else self.otel_sample

    @property
    def compares(self) -> bool:
        """It has two arms, and its stages are blocks of either."""
        return bool(self.candidate or self.candidate_set or self.same_server)

    @property
    def same_server(self) -> bool:
        """Of both arms, without any change: the base against itself, or a tenant alone and beside the others."""
        return self.aa or self.isolate is not None

    @property
    def pairs(self) -> int:
        """Of blocks that are counted: as many as the time has room for beside the first, which is not."""
        return PAIRS if not self.run_time_s else int(self.run_time_s // (2 * self.block_duration)) - 1

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """In the order of time; empty without arms."""
        return order(self.pairs, self.random_seed or 0) if self.compares else ()

    def block(self, stage: int) -> Block | None:
        """Of the stage of this number (from 1); None: there are no arms, or it is 0."""
        return self.blocks[stage - 1] if 0 < stage <= len(self.blocks) else None

    @property
    def lasts_s(self) -> float | None:
        """What is bounded in time: of a run with arms each block."""
        return self.block_duration if self.compares else self.longest_s

    @property
    def sends_fresh_words(self) -> bool:
        """Its prompts begin as no earlier run's: as asked, or since it is compared. A dataset is changed only if asked."""
        compared = self.compares or any(entry.rule is not None and entry.rule.base for entry in self.rules.entries)
        return self.fresh_words or self.prefix_cache_hit_rate is not None or (compared and self.input_file is None)

    @property
    def washout_s(self) -> float:
        return self.block_duration / 5 if self.washout is None else self.washout

    @cached_property
    def changes(self) -> Changes:
        """Of the candidate, without the values of its headers. Raises ValueError."""
        return changes(self.candidate_set)

    @property
    def warms_up(self) -> bool:
        return bool(self.warmup_request_count or self.warmup_duration or self.prefix_cache_hit_rate)

    @property
    def warmup_limit(self) -> int | None:
        """The prefill limit of the warmup phase: its own, else the main one."""
        if self.warmup_prefill_concurrency is not None:
            return self.warmup_prefill_concurrency
        return self.prefill_concurrency

    @property
    def warmup_ramp_s(self) -> float | None:
        """The ramp of the warmup phase: its own, else the main one."""
        if self.warmup_prefill_concurrency_ramp_duration is not None:
            return self.warmup_prefill_concurrency_ramp_duration
        return self.prefill_concurrency_ramp_duration


def of_stage(s: Settings, axis: str, value: float) -> Settings:
    """The settings of one stage, as if it were a run of its own."""
    limit = s.prefill_concurrency
    differs: dict[str, dict[str, int | float | None]] = {
        CONCURRENCY: {"users": int(value), "prefill_concurrency": min(limit, int(value)) if limit else None},
        RATE: {"request_rate": value},
        PREFILL: {"prefill_concurrency": int(value)},
        INPUT: {"synthetic_input_tokens_mean": value},
        REPEAT: {},
        PAIR: {},
    }
    if (block := s.block(int(value))) is not None and axis == PAIR:
        own = s.changes.prefill_concurrency if block.arm == CANDIDATE else None
        differs[PAIR] = {"prefill_concurrency": own or limit}
    return msgspec.structs.replace(s, sweep=None, repeats=1, find_max=False, **differs[axis])


def look_times(first_s: float | None, most_s: float | None) -> tuple[float, ...]:
    """Seconds from the start of profiling: the first look, then each LOOK_STEP times as late, the last one at ``most_s``. A
    run that is judged once, at its end, has one; without a length there is none.

    Each look may be the one that is wrong, so each gets an equal part of the tails (Bonferroni): an interval of one of K
    looks holds the truth in 1 - 0.05 / K, all of them together in 95 %.
    """
    if not first_s:
        return ()
    times = [first_s]
    while most_s is not None and times[-1] < most_s:
        times.append(min(times[-1] * LOOK_STEP, most_s))
    if len(times) > 2 and times[-1] < times[-2] * 1.1:  # hardly longer than the one before
        del times[-2]
    return tuple(times)
