"""The simulator as a program: its flags, what they must be, its life from the ready line to the signal."""

from __future__ import annotations

import argparse
import asyncio
import gc
import math
import resource
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from locust_llm.simulator.cost import BLOCK_SIZE, GPUS, MODELS, Cost
from locust_llm.simulator.engine import BatchEngine, Engine, FineSelector, FixedEngine
from locust_llm.simulator.scheduler import Config, Scheduler
from locust_llm.simulator.server import Connection, Server


def add_arguments(parser: argparse.ArgumentParser) -> None:
    def add(flag: str, text: str, **how: Any) -> None:
        parser.add_argument(flag, help=text, **{"metavar": "N", **how})

    count, positive, not_negative = _number(int, least=1), _number(float, above=0), _number(float, least=0)
    add("--host", "(default: %(default)s)", default="127.0.0.1", metavar="ADDRESS")
    add("--port", "0 takes a free one (default: %(default)s)", type=_number(int, least=0, most=65535), default=8000)
    add("--model", "(default: %(default)s)", choices=MODELS, default="llama-3.1-8b", metavar=None)
    add(
        "--served-model-name", "names it goes by; answers carry the first (default: --model)", metavar="NAME", nargs="+"
    )
    add("--gpu", "(default: %(default)s)", choices=GPUS, default="h100", metavar=None)
    add("--max-num-batched-tokens", "token budget of a step (default: vLLM's on this GPU)", type=count)
    add("--max-num-seqs", "sequences running at a time (default: vLLM's on this GPU)", type=count)
    add(
        "--long-prefill-token-threshold",
        "most prompt tokens of one sequence in a step while there are others (default: 0, no limit)",
        type=_number(int, least=0),
        default=0,
    )
    add("--kv-tokens", "tokens the KV cache holds (default: what the GPU's memory leaves)", type=count)
    add("--max-model-len", "context length (default: the model's, or what the KV cache holds)", type=count)
    add("--time-scale", "real seconds per simulated second (default: 1)", type=positive, default=1.0, metavar="X")
    add("--seed", "of the text, the ids and the jitter (default: 0)", type=int, default=0)
    add("--ttft-ms", "with --itl-ms: no batching, each first token after this", type=not_negative, metavar="MS")
    add("--itl-ms", "with --ttft-ms: no batching, each further token after this", type=not_negative, metavar="MS")
    add("--jitter-ms", "draw both evenly from this much around them", type=not_negative, default=0.0, metavar="MS")
    add("--idle-close", "close a connection idle for so long (default: never)", type=positive, metavar="SECONDS")
    add(
        "--truth",
        "full: GET /truth has the times of every token (default: %(default)s)",
        choices=("summary", "full"),
        default="summary",
        metavar=None,
    )


def serve(options: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit status: 0, or 2 and a line on stderr for values that won't do."""
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


async def _serve(options: argparse.Namespace) -> int:
    loop = asyncio.get_running_loop()
    cost, config, max_model_len = _settings(options)
    engine: Engine
    if options.ttft_ms is None:
        about = f"gpu {options.gpu}"
        engine = BatchEngine(Scheduler(config), cost, loop, time_scale=options.time_scale)
    else:
        about = f"fixed latency: ttft {options.ttft_ms:g} ms, itl {options.itl_ms:g} ms"
        scale = options.time_scale / 1000
        ttft_s, itl_s, jitter_s = options.ttft_ms * scale, options.itl_ms * scale, options.jitter_ms * scale
        engine = FixedEngine(ttft_s, itl_s, loop, jitter_s=jitter_s, seed=options.seed)
    server = Server(
        engine,
        names=tuple(options.served_model_name or [options.model]),
        max_model_len=max_model_len,
        seed=options.seed,
        full_truth=options.truth == "full",
        idle_close_s=options.idle_close,
    )

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


def _settings(options: argparse.Namespace) -> tuple[Cost, Config, int]:
    """The cost, the scheduler's config and max_model_len. Raises ValueError where vLLM would refuse to start."""
    cost = Cost(model=MODELS[options.model], gpu=GPUS[options.gpu])
    kv_tokens = (options.kv_tokens or cost.kv_tokens) // BLOCK_SIZE * BLOCK_SIZE
    if not kv_tokens:
        raise ValueError(f"--kv-tokens {options.kv_tokens} is less than one block of {BLOCK_SIZE}")
    max_model_len = options.max_model_len or min(cost.model.max_model_len, kv_tokens)
    if max_model_len > cost.model.max_model_len:
        raise ValueError(f"--max-model-len {max_model_len} is more than {options.model}'s {cost.model.max_model_len}")
    if max_model_len > kv_tokens:
        raise ValueError(f"--max-model-len {max_model_len} does not fit in the KV cache of {kv_tokens} tokens")
    budget = options.max_num_batched_tokens or cost.gpu.max_num_batched_tokens
    max_num_seqs = options.max_num_seqs or min(cost.gpu.max_num_seqs, budget)
    if max_num_seqs > budget:
        raise ValueError(f"--max-num-seqs {max_num_seqs} is more than --max-num-batched-tokens {budget}")
    if (options.ttft_ms is None) != (options.itl_ms is None):
        raise ValueError("--ttft-ms and --itl-ms select the fixed-latency mode together: give both or neither")
    if options.jitter_ms and options.ttft_ms is None:
        raise ValueError("--jitter-ms needs --ttft-ms and --itl-ms")
    config = Config(
        max_num_batched_tokens=budget,
        max_num_seqs=max_num_seqs,
        kv_tokens=kv_tokens,
        long_prefill_token_threshold=options.long_prefill_token_threshold,
    )
    return cost, config, max_model_len


def _number(
    kind: type[int] | type[float], *, least: float = -math.inf, above: float = -math.inf, most: float = math.inf
) -> Callable[[str], float]:
    """An argparse type that knows its range, and finds no infinity in it."""

    def parse(text: str) -> float:
        value = kind(text)
        if not (least <= value <= most and above < value < math.inf):
            bound = f"more than {above:g}" if above > -math.inf else f"at least {least:g}"
            if most < math.inf:
                bound = f"{least:g} to {most:g}"
            raise argparse.ArgumentTypeError(f"must be {bound}, got {text}")
        return value

    parse.__name__ = kind.__name__  # argparse names it where the text is no number at all
    return parse


class _Parser(argparse.ArgumentParser):
    """Errors without the usage: one clear line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"simulator: {message}\n")
