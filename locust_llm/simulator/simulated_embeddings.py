"""Embeddings and rerank: answers prompts without an output."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from . import openai_chat as api
from . import simulated_tokenizer
from .response_stream import WholeAnswer
from .scheduling.sequence import Sequence
from .simulated_metrics import TruthRow

if TYPE_CHECKING:
    from .http_connection import ClientConnection
    from .simulated_faults import Quirks
    from .simulated_server import SimulatorServer

DIMENSIONS: Final = 256


class PooledAnswer(WholeAnswer):
    """Answers embeddings or rerank. Each input is a prompt of its own, and the answer comes when
    all are computed. The engine's one token per prompt is discarded."""

    def __init__(
        self, server: SimulatorServer, connection: ClientConnection, asked: api.AnswerRequest,
        row: TruthRow, quirks: Quirks, inputs: list[list[str]],
        *, scores: bool,
    ) -> None:  # fmt: skip
        super().__init__(server, connection, asked, row, quirks)
        self.scores = scores
        caching = server.caching
        self.sequences = [
            Sequence(len(text), 1, simulated_tokenizer.block_keys(text) if caching else ())
            for text in inputs
        ]

    def start(self) -> None:
        for sequence in self.sequences:
            self.engine.add(sequence, self.on_token)
        self._fail()

    def on_token(self) -> None:
        self.count += 1
        if self._fail() or self.count < len(self.sequences):
            return
        self._computed()
        self._respond_in_time()

    def hang_up(self, fault: str = "") -> None:
        self.drop(self.sequences)
        if self.count < len(self.sequences):
            self.server.prefilled(self.asked, monotonic())
        self.close_row(aborted=not fault, fault=fault)

    def close_row(self, *, aborted: bool = False, fault: str = "") -> None:
        first = min(self.sequences, key=lambda sequence: sequence.started_at or monotonic())
        first.num_cached_tokens = sum(sequence.num_cached_tokens for sequence in self.sequences)
        self.sequence = first
        super().close_row(aborted=aborted, fault=fault)
        self.row.parts = None  # the parts of one sequence would not add up to the total

    def _computed(self) -> None:
        now = monotonic()
        metrics = self.metrics
        for sequence in self.sequences:
            metrics.prompt_tokens += sequence.num_prompt_tokens
            metrics.success["stop"] += 1
            metrics.histograms["e2e_request_latency_seconds"].observe(now - self.row.arrived_at)
        self.server.prefilled(self.asked, now)

    def _body(self) -> dict[str, Any]:
        model = self.server.names[0]
        count = self.asked.prompt_tokens
        used = {"prompt_tokens": count, "total_tokens": count}
        numbers = range(len(self.sequences))
        uniform = self.server.random.uniform
        if self.scores:
            scores = [
                {"index": number, "relevance_score": round(uniform(0, 1), 6)} for number in numbers
            ]
            return {"id": self.row.answer_id, "model": model, "usage": used, "results": scores}
        vector = [round(uniform(-1, 1), 6) for _ in range(DIMENSIONS)]
        data = [{"index": number, "object": "embedding", "embedding": vector} for number in numbers]
        return {
            "id": self.row.answer_id,
            "object": "list",
            "model": model,
            "data": data,
            "usage": used,
        }
