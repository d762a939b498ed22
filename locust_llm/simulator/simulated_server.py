"""Simulated server: routes paths, refuses requests, and holds the state that all connections
share."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import TYPE_CHECKING, Any

from . import anthropic_messages, openai_responses, simulated_tokenizer
from . import openai_chat as api
from .planted_faults import FaultPlanter
from .response_stream import ENGINE_FAILED, SimulatedAnswer, StreamedAnswer, WholeAnswer
from .scheduling.engine import Engine, Router, merge_engine_states
from .simulated_embeddings import PooledAnswer
from .simulated_faults import LIKE, Quirks, parse_quirks
from .simulated_metrics import (
    EngineMetrics,
    ServerTruth,
    TruthRow,
    format_metrics_page,
    format_process_memory,
)
from .simulated_spans import Spans

if TYPE_CHECKING:
    from .http_connection import ClientConnection, HttpRequest


BUSY = (
    "The engine is currently busy and cannot accept new requests. Please try again later or on "
    "a different instance."
)
BACKEND = "x-backend"
_OPEN_PATHS = ("/health", "/metrics", "/truth", "/truth/reset")  # without an API key too


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontEnd:
    """Describes the server to clients. The model has all ``names`` (vLLM's --served-model-name),
    and answers carry the first one. ``faults`` change the quirks of a share fault_rate of the
    requests. ``route`` and ``session_header`` are for the `Router`."""

    names: tuple[str, ...]
    max_model_len: int
    seed: int = 0
    full_truth: bool = False
    caching: bool = False
    idle_close_s: float | None = None
    api_key: str | None = None
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    quirks: Quirks = LIKE["vllm"]
    faults: str = ""
    fault_rate: float = 0.0
    route: str = "round-robin"
    session_header: str = ""
    front_end_delay_s: float = 0.0


class SimulatorServer:
    def __init__(
        self, engines: Sequence[Engine], front: FrontEnd, spans: Spans | None = None
    ) -> None:
        self.spans = spans
        self.front = front
        self.names = front.names
        self.caching = front.caching
        self.router = Router(engines, front.route)
        self.session_header = front.session_header.lower().encode() or None
        self.truth = ServerTruth(full=front.full_truth)
        self.metrics = [EngineMetrics(front.names[0], front.max_model_len) for _ in engines]
        for metrics in self.metrics if front.quirks.draft_tokens else ():
            metrics.drafts = (0, 0, 0)
        self.random = Random(front.seed)
        self.planter = FaultPlanter(front.seed)
        self.connections: set[ClientConnection] = set()
        self.num_open = 0
        self.num_queued_tokens = 0  # prompts of those without a first token
        names = front.names
        max_model_len = front.max_model_len
        self.routes: dict[str, tuple[str, Callable[[ClientConnection, HttpRequest], None]]] = {
            "/v1/chat/completions": ("POST", lambda c, r: self.answer(c, r, api.CHAT)),
            "/v1/completions": ("POST", lambda c, r: self.answer(c, r, api.COMPLETIONS)),
            "/v1/responses": ("POST", lambda c, r: self.answer(c, r, openai_responses.FORM)),
            "/v1/messages": ("POST", lambda c, r: self.answer(c, r, anthropic_messages.FORM)),
            "/v1/embeddings": ("POST", self.pooled),
            **dict.fromkeys(("/v1/rerank", "/rerank", "/v2/rerank"), ("POST", self.pooled)),
            "/v1/models": ("GET", lambda c, _: c.respond(200, list_models(names, max_model_len))),
            "/tokenize": (
                "POST",
                lambda c, r: c.respond(200, answer_tokenize(r.body, names, max_model_len)),
            ),
            "/health": ("GET", lambda c, _: c.respond(200, {"status": "ok", "server": api.NAME})),
            "/metrics": (
                "GET",
                lambda c, _: c.respond(
                    200,
                    format_metrics_page(zip(self.metrics, self.states(), strict=True))
                    + format_process_memory(self.metrics, front.quirks.memory_leak),
                ),
            ),
            "/truth": (
                "GET",
                lambda c, _: c.respond(200, self.truth.as_json() | self.engines_as_json()),
            ),
            "/truth/reset": ("POST", self.reset_truth),
        }

    def handle(self, connection: ClientConnection, request: HttpRequest) -> None:
        key = self.front.api_key
        if key and request.path not in _OPEN_PATHS and request.authorization != f"Bearer {key}":
            connection.respond(401, {"error": "Unauthorized"})
            return
        if request.path not in self.routes:
            connection.respond(404, {"detail": "Not Found"})
            return
        method, answer = self.routes[request.path]
        if request.method != method:
            connection.respond(405, {"detail": "Method Not Allowed"}, f"Allow: {method}\r\n")
            return
        try:
            answer(connection, request)
        except api.RefusedError as error:
            self.truth.refused += 1
            connection.respond(
                error.status, error.body, "Retry-After: 1\r\n" if error.status == 429 else ""
            )

    def answer(self, connection: ClientConnection, request: HttpRequest, form: api.Form) -> None:
        quirks = self.quirks_of(request)
        if quirks.status:
            raise refuse_with_status(quirks.status)
        asked = api.parse_asked(request.body, self.names, self.front.max_model_len, form)
        self.check_queue()
        own_id = f"{self.random.getrandbits(64):016x}"
        answer_id = f"{form.prefix}-{request.id or own_id}"
        row = TruthRow(
            request.id or answer_id,
            asked.prompt_tokens,
            asked.max_tokens,
            request.arrived_at,
            answer_id,
        )
        if quirks.plants_faults:
            self.planter.choose_id(quirks, row)
        self.truth.arrived(row)
        self.num_open += 1
        self.num_queued_tokens += asked.prompt_tokens
        kind: type[SimulatedAnswer] = StreamedAnswer if asked.stream else WholeAnswer
        connection.answer = answer = kind(self, connection, asked, row, quirks)
        answer.begin()

    def pooled(self, connection: ClientConnection, request: HttpRequest) -> None:
        """Answers embeddings and rerank."""
        quirks = self.quirks_of(request)
        scores = request.path.endswith("rerank")
        if quirks.status:
            raise refuse_with_status(quirks.status)
        inputs = parse_pooled(request.body, self.names, self.front.max_model_len, scores=scores)
        self.check_queue()
        prefix = "score" if scores else "embd"
        own_id = request.id or f"{self.random.getrandbits(64):016x}"
        answer_id = f"{prefix}-{own_id}"
        pieces = list(chain.from_iterable(inputs))
        asked = api.AnswerRequest(form=api.CHAT, pieces=pieces, max_tokens=1, ignore_eos=True,
            stream=False, include_usage=False,
                          continuous_usage=False)  # fmt: skip
        row = TruthRow(
            request.id or answer_id, asked.prompt_tokens, 0, request.arrived_at, answer_id
        )
        self.truth.arrived(row)
        self.num_open += 1
        self.num_queued_tokens += asked.prompt_tokens
        connection.answer = answer = PooledAnswer(
            self, connection, asked, row, quirks, inputs, scores=scores
        )
        answer.begin()

    def quirks_of(self, request: HttpRequest) -> Quirks:
        """Returns the quirks of a request: the server's, with random faults and the request's own
        header."""
        front = self.front
        quirks = front.quirks
        try:
            if front.fault_rate and self.random.random() < front.fault_rate:
                quirks = parse_quirks(front.faults, quirks)
            return parse_quirks(request.quirks, quirks) if request.quirks else quirks
        except ValueError as error:
            raise api.RefusedError(400, f"X-Simulate: {error}") from error

    def check_queue(self) -> None:
        """Models vLLM's check_admission (0.32, vllm/v1/engine/async_llm.py). It limits open
        requests, waiting or running, and the prompt tokens of requests without a first token.
        Raises RefusedError."""
        front = self.front
        if front.max_num_queued_reqs is not None and self.num_open + 1 > front.max_num_queued_reqs:
            self.metrics[0].rejections["max_num_queued_reqs"] += 1
            raise refuse_with_status(503)
        if (
            front.max_num_queued_tokens is not None
            and self.num_queued_tokens >= front.max_num_queued_tokens
        ):
            self.metrics[0].rejections["max_num_queued_tokens"] += 1
            raise refuse_with_status(503)

    def headers_of(self, number: int) -> str:
        """Returns header lines that name the replica. Empty with a single replica."""
        if len(self.metrics) == 1:
            return ""
        token = self.router.token_of(number)
        token_line = f"{self.front.session_header}: {token}\r\n" if token else ""
        return f"{BACKEND}: {number}\r\n{token_line}"

    def states(self) -> list[dict[str, float]]:
        return [engine.state() for engine in self.router.engines]

    def engines_as_json(self) -> dict[str, Any]:
        """Returns the states as JSON. ``engine`` merges all of them."""
        states = self.states()
        merged: dict[str, Any] = {"engine": merge_engine_states(states)}
        if len(states) > 1:
            merged["engines"] = states
        if self.spans:
            merged["spans"] = self.spans.counts()
        return merged

    def prefilled(self, asked: api.AnswerRequest, at: float) -> None:
        """Counts a request that got its first token, or left before."""
        self.num_queued_tokens -= asked.prompt_tokens
        self.truth.prefilled(at)

    def reset_truth(self, connection: ClientConnection, _: HttpRequest) -> None:
        self.truth.reset()
        for engine in self.router.engines:
            engine.forget_lateness()
        connection.respond(200, {"reset": True})


def refuse_with_status(status: int) -> api.RefusedError:
    """Refuses in vLLM's words, if it has that status."""
    error = {
        401: ("Unauthorized", "AuthenticationError"),
        429: ("Rate limit reached", "RateLimitError"),
        500: (ENGINE_FAILED, "InternalServerError"),
        503: (BUSY, "Service Unavailable"),
    }.get(status, ("The simulator was asked for this status.", "SimulatedError"))
    return api.RefusedError(status, *error)


def list_models(names: Sequence[str], max_model_len: int) -> dict[str, Any]:
    card = {
        "object": "model",
        "created": int(time.time()),
        "owned_by": api.NAME,
        "root": names[0],
        "parent": None,
        "max_model_len": max_model_len,
    }
    return {"object": "list", "data": [{"id": name, **card} for name in names]}


def answer_tokenize(body: bytes, names: Sequence[str], max_model_len: int) -> dict[str, Any]:
    """Answers POST /tokenize. Raises RefusedError."""
    asked = api.parse_object(body)
    api.check_model(asked, names)
    if "prompt" in asked:
        text = api.read_field(asked, "prompt", str) or ""
        pieces = simulated_tokenizer.prompt_pieces(
            text, add_special_tokens=asked.get("add_special_tokens") is not False
        )
        texts = [
            *pieces[: len(pieces) - simulated_tokenizer.count_text(text)],
            *simulated_tokenizer.piece_texts(text),
        ]
    else:
        texts = pieces = simulated_tokenizer.chat_pieces(api.parse_messages(asked))
    ids = simulated_tokenizer.encode_text(pieces)
    shown = texts if asked.get("return_token_strs") is True else None
    return {"count": len(ids), "max_model_len": max_model_len, "tokens": ids, "token_strs": shown}


def parse_pooled(
    body: bytes, names: tuple[str, ...], max_model_len: int, *, scores: bool
) -> list[list[str]]:
    """Parses the inputs, each a prompt. For rerank, each prompt is the query with one document.
    Raises RefusedError."""
    asked = api.parse_object(body)
    api.check_model(asked, names)
    if api.read_field(asked, "stream", bool):
        raise api.invalid_request_error("body.stream", "Extra inputs are not permitted")
    where = "documents" if scores else "input"
    texts = asked.get(where)
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise api.invalid_request_error(
            f"body.{where}", "Input should be a text or a list of texts"
        )
    query = api.read_field(asked, "query", str) if scores else None
    if scores and not query:
        raise api.invalid_request_error("body.query", "Field required")
    before = simulated_tokenizer.prompt_pieces(query) if query else []
    inputs = [
        [*before, *simulated_tokenizer.prompt_pieces(text, add_special_tokens=not before)]
        for text in texts
    ]
    if (longest := max(map(len, inputs))) > max_model_len:
        raise api.RefusedError(
            400,
            f"This model's maximum context length is {max_model_len} tokens. However, you "
            f"requested {longest} tokens in "
            "the input for embedding generation. Please reduce the length of the input.",
        )
    return inputs
