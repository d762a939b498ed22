"""Response stream: turns tokens into the bytes of an answer, with all simulated faults."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from . import openai_chat as api
from . import openai_chat as events
from . import server_timing, simulated_tokenizer
from .scheduling.sequence import Sequence, draw_draft_steps
from .scheduling.time_parts import measure_latency_parts
from .simulated_metrics import TruthRow
from .simulated_text import SampledToken
from .simulated_tokenizer import WORDS

if TYPE_CHECKING:
    from .http_connection import ClientConnection
    from .simulated_faults import Quirks
    from .simulated_server import SimulatorServer


ENGINE_FAILED: Final = (
    "EngineCore encountered an issue. See stack trace (above) for the root cause."
)
SPLIT_S: Final = 0.002
_WORDS: Final = [f" {word}".encode() for word in WORDS]
_TWO_BYTES: Final = "é".encode()


class SimulatedAnswer:
    """Receives an answer from the engine, one `on_token` at a time."""

    def __init__(
        self,
        server: SimulatorServer,
        connection: ClientConnection,
        asked: api.AnswerRequest,
        row: TruthRow,
        quirks: Quirks,
    ) -> None:
        self.server = server
        self.connection = connection
        self.asked = asked
        self.row = row
        self.quirks = quirks
        self.transport = connection.transport
        self.first_word = server.random.randrange(len(WORDS))
        self.count = 0
        self.before = -1
        self.first_at = self.last_at = 0.0
        max_tokens = asked.max_tokens
        self.finish_reason = "length"
        if 0 <= quirks.eos < max_tokens and not asked.ignore_eos:
            max_tokens = max(1, quirks.eos)
            self.finish_reason = "stop"
        plants = quirks.plants_faults and bool(asked.wish.messages)
        # a text of its own; None: the words of every ordinary answer
        self.spoken = (
            asked.wish.make_text(self.first_word) if plants or asked.wish.is_special else None
        )
        if self.spoken and self.spoken.ends and not asked.ignore_eos:
            own_tokens = len(self.spoken.pieces)
            self.finish_reason = "stop" if own_tokens <= max_tokens else self.finish_reason
            max_tokens = min(max_tokens, own_tokens)
        # a call is whole at any length
        self.reported_reason = "tool_calls" if asked.tool else self.finish_reason
        steps = draw_draft_steps(max_tokens, quirks.draft_tokens, quirks.acceptance, server.random)
        self.max_tokens = max_tokens
        self.accepted = iter(steps)
        self.extra_tokens = 0  # that a wrong usage counts
        self.damage = "", 0  # what happens to which chunk
        self.new_id = 0, ""  # from which chunk on
        self.model = server.names[0]
        self.planter = server.planter if plants else None
        if self.planter:
            self.planter.plant(self, crowded=server.num_open > 1)
        request = connection.request
        session = request.session if request else ""
        row.tenant = request.tenant if request else ""
        self.traceparent = request.traceparent if request else ""
        self.sequence = Sequence(
            asked.prompt_tokens, len(steps) or max_tokens, self._block_keys(max_tokens),
            priority=asked.priority, tenant=row.tenant,
        )  # fmt: skip
        self.delayed: asyncio.TimerHandle | None = None  # while the front end has it
        row.backend = number = server.router.choose(self.sequence.block_keys, session)
        self.engine = server.router.engines[number]
        self.metrics = server.metrics[number]
        self.headers = server.headers_of(number)
        self.timed = quirks.timings and asked.form in (api.CHAT, api.COMPLETIONS)

    def begin(self) -> None:
        """Hands the request to the engine after the delay of the front end."""
        if seconds := self.server.front.front_end_delay_s:
            self.delayed = asyncio.get_running_loop().call_later(seconds, self._begin)
        else:
            self.start()

    def _begin(self) -> None:
        self.delayed = None
        self.start()

    def start(self) -> None:
        self.engine.add(self.sequence, self.on_token)

    def on_token(self) -> None:
        raise NotImplementedError

    def counted(self) -> int:
        """Counts the tokens of one more step, and returns their number so far."""
        now = monotonic()
        metrics = self.metrics
        self.before = self.count
        accepted = next(self.accepted, 0)
        if self.count and self.quirks.draft_tokens:
            metrics.drafted(self.quirks.draft_tokens, accepted)
        new = min(1 + accepted, self.max_tokens - self.count)
        self.count += new
        metrics.generation_tokens += new
        if self.before > 0:
            metrics.gap(now - self.last_at)
        else:
            self.first_at = now
            metrics.first_token(self.asked.prompt_tokens, now - self.row.arrived_at)
            self.server.prefilled(self.asked, now)
            if self.planter:
                self.planter.begun(self)
        self.last_at = now
        if self.sequence.is_finished:
            metrics.finished(
                self.sequence,
                self.count,
                self.finish_reason,
                self.row.arrived_at,
                self.first_at,
                now,
            )
            if self.server.spans:
                self.server.spans.finished(self, now)
        return self.count

    def hang_up(self, fault: str = "") -> None:
        """Ends the answer because the client is gone, or because of a fault."""
        works_on = not fault and not self.sequence.is_finished and self.works_on
        if works_on:
            self._become_ghost()
        else:
            self.drop([self.sequence])
        if self.planter:
            self.planter.left(self, cancelled=not fault)
        if self.count == 0 and not works_on:
            self.server.prefilled(self.asked, monotonic())
        self.close_row(aborted=not fault, fault=fault)

    @property
    def works_on(self) -> bool:
        """Whether the server works on when the client has left."""
        ghosts = self.quirks.ghosts
        return ghosts in ("step", "max_tokens") or (
            ghosts == "unstreamed" and not self.asked.stream
        )

    def _become_ghost(self) -> None:
        if self.delayed:
            self.delayed.cancel()
            self.engine.add(self.sequence, self._count_ghost_tokens)
        else:
            self.engine.redirect(self.sequence, self._count_ghost_tokens)

    def _count_ghost_tokens(self) -> None:
        self.row.ghost_tokens += self.counted() - self.before
        if self.quirks.ghosts == "step":
            self.engine.abort(self.sequence)

    def drop(self, sequences: list[Sequence]) -> None:
        if self.delayed:
            self.delayed.cancel()
        else:
            for sequence in sequences:
                self.engine.abort(sequence)

    def close_row(self, *, aborted: bool = False, fault: str = "") -> None:
        sequence = self.sequence
        row = self.row
        row.started_at = sequence.started_at
        row.parts = measure_latency_parts(sequence)
        row.cached_tokens = sequence.num_cached_tokens
        row.preemptions = sequence.num_preemptions
        row.fault = fault
        self.server.num_open -= 1
        self.server.router.ended(row.backend)
        self.server.truth.done(row, aborted=aborted)

    def text_so_far(self) -> tuple[str | None, str]:
        """Returns reasoning and text so far."""
        if self.spoken:
            return self._spoken_so_far()
        words = [
            WORDS[index % len(WORDS)]
            for index in range(self.first_word, self.first_word + self.count)
        ]
        cut = 0 if self.quirks.eos == 0 and self.finish_reason == "stop" else len(words)
        reasoning = " ".join(words[: self.quirks.reasoning])
        return reasoning or None, " ".join(words[self.quirks.reasoning : cut])

    def _spoken_so_far(self) -> tuple[str | None, str]:
        assert self.spoken
        begin = min(self.quirks.reasoning, self.count)
        end = begin if self.quirks.eos == 0 and self.finish_reason == "stop" else self.count
        return self.spoken.text_of(0, begin) or None, self.spoken.text_of(begin, end)

    def sampled(self, begin: int, end: int) -> list[SampledToken]:
        """Returns these tokens with their logprobs."""
        assert self.spoken
        firsts = (0, self.quirks.reasoning)
        return [
            self.spoken.sampled(number, self.asked.wish.top_logprobs or 0, first=number in firsts)
            for number in range(begin, end)
        ]

    def arguments(self, text: str) -> str:
        """Returns the arguments of the tool's call, at temperature 0 as a stream writes them."""
        if self.spoken:
            return json.dumps({api.ARGUMENT: text})
        return api.encode_json({api.ARGUMENT: text}).decode()

    def keep(self) -> None:
        """Keeps the answer, so that a later request can continue it."""
        if self.asked.keep is not None:
            _, text = self.text_so_far()
            text = self.arguments(text) if self.asked.tool else text
            self.asked.keep(self.row.answer_id, text)

    def usage(self) -> dict[str, Any]:
        extra = self.extra_tokens if self.sequence.is_finished else 0
        return events.token_usage(
            self.asked.prompt_tokens, self.count + extra, self.sequence.num_cached_tokens
        )

    def fault_due(self) -> str:
        """Returns the fault that is due at this number of tokens: error, cut, reset, or an empty
        text."""
        quirks = self.quirks
        return next(
            (fault for fault in ("error", "cut", "reset") if self.reached(getattr(quirks, fault))),
            "",
        )

    def reached(self, count: int) -> bool:
        """Returns whether the last step reached this number of tokens."""
        return self.before < count <= self.count

    def as_sent(self, body: dict[str, Any]) -> bytes:
        """Encodes an answer in one piece. A malformed one lacks its end."""
        return api.encode_json(body)[: -1 if self.quirks.malformed else None]

    def break_connection(self, fault: str) -> None:
        self.connection.answer = None
        if fault == "reset":
            raw = self.transport.get_extra_info("socket")
            # closing sends a reset
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()
        else:
            self.transport.close()

    def _block_keys(self, max_tokens: int) -> list[int]:
        """Returns the block keys, including the answer's own blocks, which the next turn of a
        conversation repeats."""
        if not self.server.caching:
            return []
        words = (
            WORDS[index % len(WORDS)]
            for index in range(self.first_word, self.first_word + max_tokens)
        )
        return simulated_tokenizer.block_keys([*self.asked.pieces, *words])


class WholeAnswer(SimulatedAnswer):
    """Sends an answer in one piece when it is complete."""

    def start(self) -> None:
        super().start()
        self._fail()

    def on_token(self) -> None:
        self.counted()
        if not self._fail() and self.sequence.is_finished:
            self._respond_in_time()

    def _respond_in_time(self) -> None:
        if self.quirks.slow_headers_s:
            asyncio.get_running_loop().call_later(self.quirks.slow_headers_s, self._respond)
        else:
            self._respond()

    def _respond(self) -> None:
        if self.connection.answer is not self:  # the client has hung up meanwhile
            return
        body = self._body()
        before = monotonic()
        timings = (
            server_timing.timing_headers(self.sequence, self.count, self.row.arrived_at)
            if self.quirks.time_headers
            else ""
        )
        self.connection.respond(200, self.as_sent(body), self.headers + timings)
        self.row.first_at = before, monotonic()
        self.close_row()
        self.connection.answered()

    def _body(self) -> dict[str, Any]:
        self.keep()
        self.row.output_tokens = self.count
        reasoning, content = self.text_so_far()
        ended = api.UnstreamedAnswer(
            self.row.answer_id,
            self.model,
            content,
            reasoning,
            self.reported_reason,
            self.usage(),
            self.asked.tool,
            self.arguments(content),
            self._logprobs(),
        )
        body = self.asked.form.whole(ended)
        return (
            body | {"timings": server_timing.llamacpp_timings(self.sequence, self.count)}
            if self.timed
            else body
        )

    def _logprobs(self) -> dict[str, Any] | None:
        form = self.asked.form
        if form.logprobs is None or self.asked.wish.top_logprobs is None:
            return None
        return form.logprobs(self.sampled(0, self.count), 0)

    def _fail(self) -> bool:
        """Applies a fault that is due, and returns whether there was one."""
        if fault := self.fault_due():
            self.hang_up(fault)
            if fault == "error":
                failed = api.error_body(500, ENGINE_FAILED, "InternalServerError")
                self.connection.respond(500, failed, self.headers)
                self.connection.answered()
            else:
                self.break_connection(fault)
        return bool(fault)


class StreamedAnswer(SimulatedAnswer):
    """Streams an answer. ``held`` has the writes that wait for a slow header, a stall or the other
    half of a letter. It is None if nothing waits."""

    def __init__(
        self,
        server: SimulatorServer,
        connection: ClientConnection,
        asked: api.AnswerRequest,
        row: TruthRow,
        quirks: Quirks,
    ) -> None:
        super().__init__(server, connection, asked, row, quirks)
        self.chunks = asked.form.events(
            row.answer_id, self.model, quirks, self.reported_reason, asked
        )
        self.call = self.chunks.call()  # until it was sent
        self.continuous = asked.continuous_usage or quirks.continuous_usage
        self.frame, _ = connection.stream_framing()
        self.role = quirks.role if asked.form.opens else "none"
        self.text = b""  # of the tokens that wait for their chunk
        self.waiting_from = 0  # the number of the first of them
        self.num_characters = 0
        self.withheld = b""  # a chunk that comes behind the next one
        self.num_chunks = 0
        self.over = False
        self.held: list[tuple[bytes, int, bool]] | None = None
        self.written_at = monotonic()
        if quirks.slow_headers_s:
            self._hold(quirks.slow_headers_s)
        self.headed = False
        if not quirks.time_headers:
            self._write(self._head())
        self.ping: asyncio.TimerHandle | None = None
        if quirks.ping_s:
            self._ping()

    def start(self) -> None:
        super().start()
        self._after_tokens()

    def on_token(self) -> None:
        quirks = self.quirks
        last = self.sequence.is_finished
        count = self.counted()
        before = self.before
        if self.spoken:
            self.text += self._spoken_bytes(before, count)
        else:
            words = b"".join(
                _WORDS[(self.first_word + number) % len(_WORDS)] for number in range(before, count)
            )
            self.text += words if before else words[1:]
        reasoning = before < quirks.reasoning
        each = quirks.tokens_per_chunk
        if last or (count - 1) // each > (before - 1) // each or self.reached(quirks.reasoning):
            self._write_chunk(reasoning, last)
        self._after_tokens()

    def hang_up(self, fault: str = "") -> None:
        self._end()
        super().hang_up(fault)

    def _head(self) -> bytes:
        """Returns the head of the response with the early event, and nothing in later calls."""
        if self.headed:
            return b""
        self.headed = True
        timings = (
            server_timing.timing_headers(self.sequence, self.count, self.row.arrived_at)
            if self.quirks.time_headers
            else ""
        )
        _, head = self.connection.stream_framing(self.headers + timings)
        return head + (self.frame(self.chunks.role(self._used())) if self.role == "early" else b"")

    def _spoken_bytes(self, begin: int, end: int) -> bytes:
        """Returns the text of these tokens within a JSON text, without the blank before all."""
        assert self.spoken
        text = "".join(map(self.spoken.piece, range(begin, end)))
        if begin in (0, self.quirks.reasoning):
            text = text.removeprefix(" ")
        text = json.dumps(text)[1:-1]
        if self.asked.tool:  # its arguments are a JSON text within a JSON text
            text = json.dumps(text)[1:-1]
        return text.encode()

    def _chunk_logprobs(self) -> bytes:
        """Returns the logprobs of the tokens that wait, as JSON. Empty: none are asked for."""
        form = self.asked.form
        begin = self.waiting_from
        self.waiting_from = self.count
        if form.logprobs is None or self.asked.wish.top_logprobs is None:
            return b""
        tokens = self.sampled(begin, self.count)
        logprobs = form.logprobs(tokens, self.num_characters)
        self.num_characters += sum(len(token.text) for token in tokens)
        return api.encode_json(logprobs)

    def _damaged(self, data: bytes) -> bytes:
        """Applies the planted fault of this chunk, if it has one. Returns what is sent of it."""
        kind, place = self.damage
        if self.num_chunks == place:
            self.row.planted.append(kind)
            if kind == "reorder_delta":
                self.withheld = data
            return data + data if kind == "double_delta" else b""
        sent = data + self.withheld
        self.withheld = b""
        return sent

    def _write_chunk(self, reasoning: bool, last: bool) -> None:
        quirks = self.quirks
        chunks = self.chunks
        frame = self.frame
        used = self._used()
        finish_with_usage = self.usage() if quirks.usage == "finish" else used
        text = self.text
        self.text = b""
        if quirks.eos == 0 and self.finish_reason == "stop":
            text = b""
        if quirks.split_utf8:
            text += _TWO_BYTES
        if self.asked.tool and last:
            text += events.CALL_END
        if self.planter and self.num_chunks + 1 == self.new_id[0]:
            self._rename()
        if isinstance(chunks, api.Chunks):
            chunks.logprobs = self._chunk_logprobs() if self.spoken else b""
        # before the chunk, as Responses numbers its events
        role = b""
        # vLLM sends the role only when there is a token
        if self.num_chunks == 0 and self.role == "first":
            role_usage = used and events.token_usage(self.asked.prompt_tokens, 0)
            role = frame(chunks.role(role_usage))
        with_last = last and quirks.finish == "last"
        event = chunks.text(
            text, finish_with_usage if with_last else used, reasoning=reasoning, last=with_last
        )
        if (
            with_last
            and isinstance(chunks, api.Chunks)
            and not chunks.has_end(self.asked.include_usage)
            and self.timed
        ):
            event = self._with_timings(event)
        self.num_chunks += 1
        if self.num_chunks == quirks.malformed:
            event = event[: max(map(event.rfind, (b'"index"', b'"output_index"')))] + b"\n\n"
        if quirks.split_utf8:
            middle = event.index(_TWO_BYTES) + 1
            data = frame(event[:middle])
            rest = frame(event[middle:])
        else:
            data = frame(event)
            rest = b""
        if self.call and not reasoning:
            data = frame(self.call) + data
            self.call = b""
        data = role + data
        if self.planter and self.damage[1]:
            data = self._damaged(data)
        if data:
            self._write(self._head() + data, self.count)
        if rest:
            self._hold(SPLIT_S)
            self._write(rest)
        if last:
            self._write_end(finish_with_usage)

    def _rename(self) -> None:
        if self.chunks.rename(f"{self.asked.form.prefix}-{self.new_id[1]}"):
            self.row.planted.append("wrong_id")

    def _write_end(self, finish_with_usage: dict[str, Any] | None) -> None:
        self.keep()
        chunks = self.chunks.end(
            self.usage(), finish_with_usage, include_usage=self.asked.include_usage
        )
        if self.timed and chunks:
            chunks[-1] = self._with_timings(chunks[-1])
        self._write(b"".join(map(self.frame, chunks)) + self._done(), end=True)

    def _with_timings(self, event: bytes) -> bytes:
        timings = api.encode_json(server_timing.llamacpp_timings(self.sequence, self.count))
        return event.removesuffix(b"}\n\n") + b',"timings":%b}\n\n' % timings

    def _done(self) -> bytes:
        done = self.chunks.done
        return (self.frame(done) if done else b"") + self.connection.end_of_stream

    def _used(self) -> dict[str, Any] | None:
        return self.usage() if self.continuous else None

    def _after_tokens(self) -> None:
        """Applies the faults that are due at this number of tokens."""
        if self.over:
            return
        if fault := self.fault_due():
            self.hang_up(fault)
            if fault == "error":
                self.transport.write(
                    self._head() + self.frame(self.chunks.error(ENGINE_FAILED)) + self._done()
                )
                self.connection.answered()
            else:
                self.break_connection(fault)
        elif self.reached(self.quirks.stall):
            self._hold(self.quirks.stall_s)

    def _write(self, data: bytes, count: int = 0, *, end: bool = False) -> None:
        """Writes data. ``count`` is the number of tokens so far, if the data has tokens. ``end``
        marks the last write."""
        if self.held is not None:
            self.held.append((data, count, end))
            return
        before = monotonic()
        self.transport.write(data)
        self.written_at = after = monotonic()
        row = self.row
        if count:
            row.output_tokens = count
            if self.transport.get_write_buffer_size():
                row.buffered += 1
            if row.token_at is not None:
                row.token_at.extend((before, after))
            if row.first_at is None:
                row.first_at = before, after
        if end:
            self._end()
            self.close_row()
            self.connection.answered()

    def _end(self) -> None:
        self.over = True
        if self.ping:
            self.ping.cancel()

    def _hold(self, seconds: float) -> None:
        if self.held is None:
            self.held = []
            asyncio.get_running_loop().call_later(seconds, self._release)

    def _release(self) -> None:
        held = self.held or []
        self.held = None
        for write in held:
            if not self.over:
                self._write(*write[:2], end=write[2])

    def _ping(self) -> None:
        wait_s = self.written_at + self.quirks.ping_s - monotonic()
        if wait_s <= 0:
            if self.headed:
                self._write(self.frame(events.PING))
            wait_s = self.quirks.ping_s
        self.ping = asyncio.get_running_loop().call_later(wait_s, self._ping)
