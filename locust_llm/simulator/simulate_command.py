"""Command ``locust-llm simulate``: reads its flags, checks contradictions, and runs the server."""

from __future__ import annotations

import argparse
import asyncio
import errno
import gc
import os
import resource
import signal
import socket
import ssl
import sys
from contextlib import suppress
from functools import partial
from typing import NoReturn

from .http_connection import ClientConnection
from .openai_chat import NAME
from .scheduling.async_engine import AsyncEngine
from .scheduling.batching_policies import POLICIES, WHOLE_PROMPTS, chunked
from .scheduling.clock import EventClock, FineSelector
from .scheduling.disaggregated import DisaggregatedEngine, Link
from .scheduling.engine import ROUTES, BatchEngine, Engine, FixedEngine
from .scheduling.scheduler_queues import Policy, Scheduler, SchedulerConfig, Stateful
from .scheduling.step_cost import BLOCK_SIZE, GPUS, MODELS, StepCostConstants
from .scheduling.waiting_order import QUEUES, make_waiting_queue
from .simulated_faults import LIKE, Quirks, parse_quirks
from .simulated_server import FrontEnd, SimulatorServer
from .simulated_spans import Spans
from .simulator_flags import DISAGGREGATED, add_simulator_arguments
from .span_sender import SpanSender

# the exit status of locust-llm for wrong values (docs/reference/exit-status.md); this package
# imports nothing of it
REFUSED = 5
FLUSH_S = 2.0  # for the last spans
OTLP_MISSING = (
    "--otlp-traces-endpoint needs the package opentelemetry-proto: pip install 'locust-llm[otlp]'"
)
SESSION_HEADERS = {"session": "X-Session-ID", "token": "x-session-token"}  # by route


def read_scheduler_options(
    options: argparse.Namespace,
) -> tuple[StepCostConstants, SchedulerConfig, str, int]:
    """Returns the cost, the scheduler's config, the policy and max_model_len. Raises ValueError if
    vLLM would refuse to start, mostly in its words (vllm/config/scheduler.py)."""
    cost = _read_cost(options)
    kv_tokens = (options.kv_tokens or cost.kv_tokens) // BLOCK_SIZE * BLOCK_SIZE
    if not kv_tokens:
        raise ValueError(f"--kv-tokens {options.kv_tokens} is less than one block of {BLOCK_SIZE}")
    max_model_len = options.max_model_len or min(cost.model.max_model_len, kv_tokens)
    if max_model_len > cost.model.max_model_len:
        raise ValueError(
            f"--max-model-len {max_model_len} is more than {options.model}'s "
            f"{cost.model.max_model_len}"
        )
    if max_model_len > kv_tokens:
        raise ValueError(
            f"--max-model-len {max_model_len} does not fit in the KV cache of {kv_tokens} tokens"
        )
    policy = _choose_policy(options)
    whole = policy in WHOLE_PROMPTS
    default = cost.gpu.max_num_batched_tokens
    if whole:
        default = max(max_model_len, default)
    budget = options.max_num_batched_tokens or default
    if whole and budget < max_model_len:
        raise ValueError(
            f"max_num_batched_tokens ({budget}) is smaller than max_model_len ({max_model_len}), "
            f"and {policy} computes a "
            "prompt in one step: increase --max-num-batched-tokens or decrease --max-model-len"
        )
    max_num_seqs = options.max_num_seqs or min(cost.gpu.max_num_seqs, budget)
    if max_num_seqs > budget:
        raise ValueError(
            f"--max-num-seqs {max_num_seqs} is more than --max-num-batched-tokens {budget}"
        )
    if (options.max_num_active_seqs or 0) > max_num_seqs:
        raise ValueError(
            f"--max-num-active-seqs {options.max_num_active_seqs} is more than --max-num-seqs "
            f"{max_num_seqs}"
        )
    threshold = options.long_prefill_token_threshold
    if threshold > max_model_len:
        raise ValueError(
            f"--long-prefill-token-threshold {threshold} is more than --max-model-len "
            f"{max_model_len}"
        )
    num = options.max_num_partial_prefills
    num_long = options.max_long_partial_prefills
    if num > budget:
        raise ValueError(
            f"--max-num-partial-prefills {num} is more than --max-num-batched-tokens {budget}"
        )
    if num_long > num:
        raise ValueError(
            f"--max-long-partial-prefills {num_long} is more than --max-num-partial-prefills {num}"
        )
    config = SchedulerConfig(
        max_num_batched_tokens=budget,
        max_num_seqs=max_num_seqs,
        kv_tokens=kv_tokens,
        enable_prefix_caching=options.enable_prefix_caching,
        long_prefill_token_threshold=threshold or (int(max_model_len * 0.04) if num > 1 else 0),
        long_prefill_token_threshold_adaptive=options.long_prefill_token_threshold_adaptive,
        max_num_active_seqs=options.max_num_active_seqs,
        watermark=options.watermark,
        max_num_partial_prefills=num,
        max_long_partial_prefills=num_long,
    )
    return cost, config, policy, max_model_len


def session_header(options: argparse.Namespace) -> str:
    """Returns the header that the router reads, or an empty text. Raises ValueError."""
    if options.route == "prefix" and (
        options.ttft_ms is not None or not options.enable_prefix_caching
    ):
        raise ValueError(
            "--route prefix needs a prefix cache: leave out --no-enable-prefix-caching and "
            "--ttft-ms"
        )
    if options.route != ROUTES[0] and options.replicas == 1:
        raise ValueError(f"--route {options.route} needs --replicas of at least 2")
    if options.route_header and options.route not in SESSION_HEADERS:
        raise ValueError(
            f"--route-header needs --route {' or '.join(SESSION_HEADERS)}, not {options.route}"
        )
    return options.route_header or SESSION_HEADERS.get(options.route, "")


def read_quirks(options: argparse.Namespace) -> Quirks:
    """Returns the quirks of every request. Raises ValueError, also for invalid --faults."""
    quirks = parse_quirks(options.quirks, LIKE[options.like])
    if options.stream_interval:
        quirks = parse_quirks(f"tokens_per_chunk={options.stream_interval}", quirks)
    for flag in ("timings", "time_headers"):
        if getattr(options, flag):
            quirks = parse_quirks(f"{flag}=yes", quirks)
    parse_quirks(options.faults, quirks)
    if bool(options.fault_rate) != bool(options.faults):
        raise ValueError("give both --faults and --fault-rate, or neither")
    return quirks


def _read_cost(options: argparse.Namespace) -> StepCostConstants:
    overheads = {}
    if options.step_overhead_ms is not None:
        overheads["step_overhead_s"] = options.step_overhead_ms / 1e3
    if options.seq_overhead_us is not None:
        overheads["seq_overhead_s"] = options.seq_overhead_us / 1e6
    return StepCostConstants(model=MODELS[options.model], gpu=GPUS[options.gpu], **overheads)


def _choose_policy(options: argparse.Namespace) -> str:
    chunking = options.enable_chunked_prefill
    partial = options.max_num_partial_prefills > 1
    default = "mixed" if chunking is False else "chunked"
    if partial:
        default = "partial-prefills"
    policy: str = options.policy or default
    if chunking is not None and chunking == (policy in WHOLE_PROMPTS):
        raise ValueError(
            f"--{'' if chunking else 'no-'}enable-chunked-prefill contradicts --policy {policy}"
        )
    if partial and policy != "partial-prefills":
        raise ValueError(
            f"--max-num-partial-prefills needs --policy partial-prefills, not {policy}"
        )
    if options.async_scheduling and policy not in ("chunked", "mixed", DISAGGREGATED):
        raise ValueError(f"--async-scheduling needs --policy chunked or mixed, not {policy}")
    if (options.ttft_ms is None) != (options.itl_ms is None):
        raise ValueError("give both --ttft-ms and --itl-ms, or neither")
    if options.scheduling_policy != QUEUES[0] and options.ttft_ms is not None:
        raise ValueError("--scheduling-policy needs a scheduler: leave out --ttft-ms and --itl-ms")
    if options.tenant_weight and options.scheduling_policy != "fair":
        raise ValueError(
            f"--tenant-weight needs --scheduling-policy fair, not {options.scheduling_policy}"
        )
    if options.jitter_ms and options.ttft_ms is None:
        raise ValueError("--jitter-ms needs --ttft-ms and --itl-ms")
    return policy


# -- the simulator as a program --------------------------------------------------------------------


def serve_simulator(options: argparse.Namespace) -> int:
    """Runs until SIGTERM or SIGINT. Returns the exit status: 0, or 5 with a line on stderr for
    invalid values."""
    try:
        with asyncio.Runner(
            loop_factory=lambda: asyncio.SelectorEventLoop(FineSelector())
        ) as runner:
            return runner.run(_serve(options))
    except ValueError as error:
        print(f"simulator: {error}", file=sys.stderr)
        return REFUSED


def main(argv: list[str]) -> int:
    parser = _Parser(prog="python -m locust_llm.simulator", description="A simulated vLLM server.")
    add_simulator_arguments(parser)
    return serve_simulator(parser.parse_args(argv))


def run_simulate(words: list[str]) -> int:
    """Runs ``locust-llm simulate``, the simulator in this process. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="locust-llm simulate", description="An OpenAI-compatible server without a GPU."
    )
    add_simulator_arguments(parser)
    return serve_simulator(parser.parse_args(words))


def make_engine(
    options: argparse.Namespace,
    cost: StepCostConstants,
    config: SchedulerConfig,
    policy: str,
    clock: EventClock,
) -> tuple[Engine, str]:
    """Makes the engine, and its description for the ready line."""
    scale = options.time_scale

    def batch_engine(choose: Policy | type[Stateful]) -> BatchEngine:
        waiting = make_waiting_queue(options.scheduling_policy, options.tenant_weight)
        kind = AsyncEngine if options.async_scheduling else BatchEngine
        return kind(Scheduler(config, choose, waiting=waiting), cost, clock, time_scale=scale)

    if options.ttft_ms is not None:
        ttft_s = options.ttft_ms / 1e3 * scale
        itl_s = options.itl_ms / 1e3 * scale
        jitter_s = options.jitter_ms / 1e3 * scale
        about = f"fixed latency: ttft {options.ttft_ms:g} ms, itl {options.itl_ms:g} ms"
        return FixedEngine(ttft_s, itl_s, clock, jitter_s=jitter_s, seed=options.seed), about
    if policy == DISAGGREGATED:
        prefill = [batch_engine(chunked) for _ in range(options.prefill_engines)]
        decode = [batch_engine(chunked) for _ in range(options.decode_engines)]
        link = Link(
            bytes_per_token=cost.model.kv_bytes_per_token,
            bytes_per_s=options.kv_transfer_gb_per_s * 1e9,
        )
        engine = DisaggregatedEngine(prefill, decode, link, clock, time_scale=scale)
        return engine, f"gpu {options.gpu}, {policy}: {len(prefill)} prefill, {len(decode)} decode"
    ordered = "" if options.scheduling_policy == QUEUES[0] else f", {options.scheduling_policy}"
    return batch_engine(POLICIES[policy]), f"gpu {options.gpu}, {policy}{ordered}"


def make_spans(options: argparse.Namespace) -> Spans | None:
    """Makes the spans, or returns None without an endpoint. Raises ValueError."""
    if not options.otlp_traces_endpoint:
        return None
    try:
        from .otlp_encoder import Encoder  # late: the simulator starts without the extra
    except ImportError:
        raise ValueError(OTLP_MISSING) from None
    sender = SpanSender(options.otlp_traces_endpoint, Encoder(options.otlp_protocol, NAME))
    return Spans(sender, clock_offset_s=options.clock_offset)


def make_tls(options: argparse.Namespace) -> ssl.SSLContext | None:
    """Makes the TLS context, or returns None without a certificate. Raises ValueError."""
    if not options.ssl_certfile:
        if options.ssl_keyfile or options.ssl_ca_certs:
            raise ValueError("--ssl-keyfile and --ssl-ca-certs need --ssl-certfile")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(options.ssl_certfile, options.ssl_keyfile)
        if options.ssl_ca_certs:
            context.load_verify_locations(options.ssl_ca_certs)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:
        raise ValueError(f"the certificates cannot be read: {error.strerror or error}") from error
    return context


async def _serve(options: argparse.Namespace) -> int:
    loop = asyncio.get_running_loop()
    cost, config, policy, max_model_len = read_scheduler_options(options)
    header = session_header(options)
    engines = [make_engine(options, cost, config, policy, loop) for _ in range(options.replicas)]
    about = engines[0][1] + (
        f"; {len(engines)} replicas, {options.route}" if len(engines) > 1 else ""
    )
    front = FrontEnd(
        names=tuple(options.served_model_name or [options.model]),
        max_model_len=max_model_len,
        seed=options.seed,
        full_truth=options.truth == "full",
        caching=config.enable_prefix_caching and options.ttft_ms is None,
        idle_close_s=options.idle_close,
        api_key=options.api_key,
        max_num_queued_reqs=options.max_num_queued_reqs,
        max_num_queued_tokens=options.max_num_queued_tokens,
        quirks=read_quirks(options),
        faults=options.faults,
        fault_rate=options.fault_rate,
        route=options.route,
        session_header=header,
        front_end_delay_s=options.front_end_delay / 1e3,
    )
    spans = make_spans(options)
    server = SimulatorServer([engine for engine, _ in engines], front, spans)
    sending = asyncio.create_task(spans.sender.run()) if spans else None

    tls = make_tls(options)
    connect = partial(ClientConnection, server)
    try:
        listener = await loop.create_server(
            connect, options.host, options.port, backlog=4096, ssl=tls
        )
    except OSError as error:
        raise ValueError(explain_port_error(options.host, options.port, error)) from error
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    # a connection is a file; soft is often 1,024
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    gc.freeze()
    host, port = listener.sockets[0].getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    print(
        f"simulator listening on http{'s' * bool(tls)}://{host}:{port} (model {options.model}, "
        f"{about})",
        flush=True,
    )
    await stop.wait()
    listener.close()
    for connection in list(server.connections):
        connection.transport.abort()
    if spans and sending:
        sending.cancel()
        with suppress(TimeoutError):
            await asyncio.wait_for(spans.sender.flush(), FLUSH_S)
    return 0


def explain_port_error(host: str, port: int, error: OSError) -> str:
    """Explains why the simulator cannot listen there, and what to do."""
    if error.errno == errno.EADDRINUSE:
        return f"--port {port} cannot be opened: another program uses it: choose another port"
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host} is not an address of this machine"
    return f"--port {port} cannot be opened: {os.strerror(error.errno) if error.errno else error}"


class _Parser(argparse.ArgumentParser):
    """Reports errors in one line without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(REFUSED, f"simulator: {message}\n")
