"""Telemetry counts: what became of the spans, metrics and logs that a run sent by OpenTelemetry, in
run.json."""

from typing import Annotated

import msgspec

from locust_llm.text.format import format_count

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class TelemetryCounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The counts of one process that sends, or of all of them together."""

    requests: Count = 0
    """The requests whose record was handed over. Each is in the metrics."""
    sampled: Count = 0
    """The requests whose spans were to be sent."""
    spans: Count = 0
    """The requests whose spans the collector accepted."""
    dropped: Count = 0
    """The requests whose spans found the queue full, or were still in it when the time at the end
    was over."""
    refused: Count = 0
    """The requests whose spans the collector refused."""
    logs: Count = 0
    """The failures whose log record the collector accepted."""
    logs_lost: Count = 0
    """The failures whose log record was dropped or refused."""
    metrics_lost: Count = 0
    """The processes whose last export of metrics (the one with the whole run) the collector
    refused."""
    lost: Count = 0
    """The records that reached no exporting process: they are in nothing that was sent."""
    mistake: str = ""
    """The first fault."""

    def __add__(self, other: "TelemetryCounts") -> "TelemetryCounts":
        mine = msgspec.structs.asdict(self)
        theirs = msgspec.structs.asdict(other)
        mistake = mine.pop("mistake") or theirs["mistake"]
        return TelemetryCounts(
            **{name: count + theirs[name] for name, count in mine.items()}, mistake=mistake
        )

    @property
    def remark(self) -> str:
        """What the report must mention; empty where everything was accepted."""
        missing = [
            f"{format_count(count, thing)} {how}"
            for count, thing, how in (
                (
                    self.dropped,
                    "span",
                    "dropped (the queue was full, or the time at the end was over)",
                ),
                (self.refused, "span", "not taken"),
                (self.logs_lost, "log record", "not taken"),
                (self.metrics_lost, "process", "without its last metrics"),
                (self.lost, "request", "in neither spans nor metrics"),
            )
            if count
        ]
        if not missing:
            return ""
        first = f"; the first mistake: {self.mistake}" if self.mistake else ""
        return (
            f"WARNING: OpenTelemetry data of this run is incomplete: {', '.join(missing)}; the "
            f"collector received the spans of {self.spans:,} of {self.sampled:,} requests{first}"
        )
