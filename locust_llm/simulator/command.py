"""The simulator as a program: its life from the flags over the ready line to the signal."""

from __future__ import annotations

import argparse
import asyncio
import gc
import resource
import signal
import sys
from functools import partial
from typing import NoReturn

from locust_llm.simulator import calibration
from locust_llm.simulator.clock import Clock, FineSelector
from locust_llm.simulator.connection import Connection
from locust_llm.simulator.cost import Cost
from locust_llm.simulator.disaggregated import DisaggregatedEngine, Link
from locust_llm.simulator.engine import BatchEngine, Engine
from locust_llm.simulator.fixed import FixedEngine
from locust_llm.simulator.flags import DISAGGREGATED, add_arguments, quirks, settings
from locust_llm.simulator.policies import POLICIES, chunked
from locust_llm.simulator.scheduler import Config, Scheduler
from locust_llm.simulator.server import Front, Server

__all__ = ["add_arguments", "main", "serve"]


def serve(options: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit status: 0, or 2 and a line on stderr for values that won't do."""
    if options.calibration:
        print(calibration.report())
        return 0
    try:
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(FineSelector())) as runner:
            return runner.run(_serve(options))
    except (ValueError, OSError) as error:  # OSError: the address can't be had
        print(f"simulator: {error}", file=sys.stderr)
        return 2


def main(argv: list[str]) -> int:
    parser = _Parser(prog="python -m locust_llm.simulator", description="A simulated vLLM server.")
    add_arguments(parser)
    return serve(parser.parse_args(argv))


def make_engine(
    options: argparse.Namespace, cost: Cost, config: Config, policy: str, clock: Clock
) -> tuple[Engine, str]:
    """The engine and what the ready line says of it."""
    scale = options.time_scale
    if options.ttft_ms is not None:
        ttft_s, itl_s, jitter_s = (ms / 1e3 * scale for ms in (options.ttft_ms, options.itl_ms, options.jitter_ms))
        about = f"fixed latency: ttft {options.ttft_ms:g} ms, itl {options.itl_ms:g} ms"
        return FixedEngine(ttft_s, itl_s, clock, jitter_s=jitter_s, seed=options.seed), about
    if policy == DISAGGREGATED:
        prefill, decode = (
            [BatchEngine(Scheduler(config, chunked), cost, clock, time_scale=scale) for _ in range(count)]
            for count in (options.prefill_engines, options.decode_engines)
        )
        link = Link(bytes_per_token=cost.model.kv_bytes_per_token, bytes_per_s=options.kv_transfer_gb_per_s * 1e9)
        engine = DisaggregatedEngine(prefill, decode, link, clock, time_scale=scale)
        return engine, f"gpu {options.gpu}, {policy}: {len(prefill)} prefill, {len(decode)} decode"
    engine_of_one = BatchEngine(Scheduler(config, POLICIES[policy]), cost, clock, time_scale=scale)
    return engine_of_one, f"gpu {options.gpu}, {policy}"


async def _serve(options: argparse.Namespace) -> int:
    loop = asyncio.get_running_loop()
    cost, config, policy, max_model_len = settings(options)
    engine, about = make_engine(options, cost, config, policy, loop)
    front = Front(
        names=tuple(options.served_model_name or [options.model]),
        max_model_len=max_model_len,
        seed=options.seed,
        full_truth=options.truth == "full",
        caching=config.enable_prefix_caching and options.ttft_ms is None,
        idle_close_s=options.idle_close,
        api_key=options.api_key,
        max_num_queued_reqs=options.max_num_queued_reqs,
        max_num_queued_tokens=options.max_num_queued_tokens,
        quirks=quirks(options),
        faults=options.faults,
        fault_rate=options.fault_rate,
    )
    server = Server(engine, front)

    listener = await loop.create_server(partial(Connection, server), options.host, options.port, backlog=4096)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # a connection is a file; soft is often 1,024
    gc.freeze()
    host, port = listener.sockets[0].getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    print(f"simulator listening on http://{host}:{port} (model {options.model}, {about})", flush=True)
    await stop.wait()
    listener.close()
    for connection in list(server.connections):
        connection.transport.abort()
    return 0


class _Parser(argparse.ArgumentParser):
    """Errors without the usage: one clear line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"simulator: {message}\n")
