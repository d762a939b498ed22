"""Block runner: takes a run through its blocks, in each of which one arm or one prefill limit is
measured. settings/ab_arms.py decides the order and the lengths of A/B blocks."""

import logging
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from locust_llm.records.outcomes import OK
from locust_llm.records.phase_plan import WARMUP
from locust_llm.records.profile_export_jsonl import EncodedRecord, encode_record
from locust_llm.records.run_facts import (
    Run,
    Stage,
)
from locust_llm.settings.ab_arms import TrialBlock, find_long_enough_block
from locust_llm.settings.run_options import Settings, make_stage_settings
from locust_llm.settings.sweep_option import (
    STOPPED,
    TIME_UP,
    Sweep,
)
from locust_llm.text.format import format_duration

from .stage_runner import StageRunner

logger = logging.getLogger("locust_llm")


class BlockRunner(StageRunner):
    """The stages of the runner are blocks. Between two blocks all open requests come back, and
    requests that are due in the washout at the begin of a block do not count. So no arm sees the
    other's queue. Blocks have no folders and reports."""

    def __init__(
        self, settings: Settings, asked: Sweep, folder: Path, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(settings, asked, folder, clock)
        self._response_times_s = dict[str, list[float]]()
        """The response times of the uncounted pair, by arm."""

    @property
    def block(self) -> TrialBlock:
        """The present block, or the last one."""
        return self._whole.blocks[max(self.number, 1) - 1]

    def __str__(self) -> str:
        """``block 5 of 26: candidate, pair 2 of 12``"""
        block, whole = self.block, self._whole
        pair = f"pair {block.pair} of {whole.pairs}" if block.pair else "not counted"
        return f"block {self.number} of {len(whole.blocks)}: {block.arm}, {pair}"

    def next(self) -> bool:
        if self.number == len(self._whole.blocks):
            self.end = "all pairs are complete"
            return False
        self.number += 1
        self.value = float(self.number)
        self.settings = make_stage_settings(self._whole, self.asked.axis, self.value)
        return True

    @property
    def open(self) -> bool:
        return len(self.finished) < self.number

    def begin(self, now: float) -> None:
        self._began_at, self._ended_at = now, None

    def add_record(self, encoded: EncodedRecord) -> EncodedRecord:
        record = encoded.record
        if not self.block.pair and record.outcome == OK and record.sent_at is not None:
            seconds = record.closed_at - record.sent_at
            self._response_times_s.setdefault(self.block.arm, []).append(seconds)
        counts = (
            self.block.pair
            and record.due_at + record.clock_offset_s >= self._began_at + self._whole.washout_s
        )
        return encoded if counts else encode_record(msgspec.structs.replace(record, phase=WARMUP))

    def close(self, facts: Callable[[Stage], Run], *, report: bool) -> None:
        """``report``: the block came to its end; else the run ended before it."""
        if not self.open:
            return
        whole, pair, began_at = self._whole, self.block.pair, self._began_at
        ended_at = began_at + self.block.load_s
        self.finished.append(
            Stage(
                number=self.number,
                value=self.value,
                began_at=began_at,
                measured_at=began_at + whole.washout_s if pair else None,
                ended_at=ended_at if report else self._ended_at or time.time(),
                why=TIME_UP if report else STOPPED,
                arm=self.block.arm,
                pair=pair,
            )
        )
        if report and not pair and len(self.finished) > 1:
            self._warn_of_short_blocks()

    def _warn_of_short_blocks(self) -> None:
        """Warn after the uncounted pair: where requests last as long as blocks, many blocks have no
        counted request."""
        means_s = {
            arm: statistics.fmean(times) for arm, times in self._response_times_s.items() if times
        }
        if not means_s:
            return
        slower = max(means_s, key=lambda arm: means_s[arm])
        block_s, washout_s = self._whole.block_s, self._whole.washout_s
        enough_s = find_long_enough_block(means_s[slower], block_s=block_s, washout_s=washout_s)
        if enough_s is None:
            return
        logger.warning(
            f"A request of the {slower} takes {format_duration(means_s[slower])}, but only "
            f"{format_duration(block_s - washout_s)} of a block count, so many blocks may have no "
            f"request. Use --block-duration {enough_s}."
        )
