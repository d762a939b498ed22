"""The simulator's flags, under vLLM's names where vLLM has them, and what they must be."""

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

from .connection import Connection
from .quirks import LIKE, Quirks, parse
from .scheduling.clock import Clock, FineSelector
from .scheduling.cost import BLOCK_SIZE, GPUS, MODELS, Cost
from .scheduling.disaggregated import DisaggregatedEngine, Link
from .scheduling.engine import ROUTES, BatchEngine, Engine, FixedEngine
from .scheduling.policies import POLICIES, WHOLE_PROMPTS, chunked
from .scheduling.scheduler import Config, Scheduler
from .server import Front, Server

DISAGGREGATED = "disaggregated"
SESSION_HEADERS = {"session": "X-Session-ID", "token": "x-session-token"}  # by route


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _add_server(parser.add_argument_group("server"))
    _add_engine(parser.add_argument_group("engine"))
    _add_front(parser.add_argument_group("how answers look and fail"))


def _add_server(group: argparse._ArgumentGroup) -> None:
    add, positive = _adder(group), _number(float, above=0)
    count, any_count = _number(int, least=1), _number(int, least=0)
    add("--host", "address to listen on (default: %(default)s)", default="127.0.0.1", metavar="ADDRESS")
    add("--port", "0 takes a free one (default: %(default)s)", type=_number(int, least=0, most=65535), default=8000)
    add(
        "--served-model-name", "names it goes by; answers carry the first (default: --model)", metavar="NAME", nargs="+"
    )
    add("--max-model-len", "context length (default: the model's, or what the KV cache holds)", type=count)
    add("--api-key", "refuse requests without it", metavar="KEY")
    add("--max-num-queued-reqs", "503 for more open requests than that (default: no limit)", type=any_count)
    add(
        "--max-num-queued-tokens",
        "503 while that many prompt tokens wait or prefill (default: no limit)",
        type=any_count,
    )
    add("--replicas", "engines behind the address, each with a KV cache of its own (default: 1)", type=count, default=1)
    add(
        "--route", "which of them a request goes to: the next one, that of its session, that with most of its prompt "
        "cached, or that of its token, which the answer before brought (default: %(default)s)",
        choices=ROUTES, default=ROUTES[0], metavar=None,
    )  # fmt: skip
    add("--route-header", "the session, or the token (default: X-Session-ID, x-session-token)", metavar="NAME")
    add("--idle-close", "close a connection idle for so long (default: never)", type=positive, metavar="SECONDS")
    add("--seed", "of the text, the ids, the jitter and the faults (default: 0)", type=int, default=0)
    add(
        "--truth", "full: GET /truth has the times of every chunk (default: %(default)s)",
        choices=("summary", "full"), default="summary", metavar=None,
    )  # fmt: skip


def _add_engine(group: argparse._ArgumentGroup) -> None:
    add, count, positive, not_negative = (
        _adder(group), _number(int, least=1), _number(float, above=0), _number(float, least=0),
    )  # fmt: skip
    add(
        "--model",
        "model whose times are simulated (default: %(default)s)",
        choices=MODELS,
        default="llama-3.1-8b",
        metavar=None,
    )
    add("--gpu", "GPU that it runs on (default: %(default)s)", choices=GPUS, default="h100", metavar=None)
    add(
        "--policy", "how steps are scheduled (default: chunked; with --no-enable-chunked-prefill mixed; with "
        "--max-num-partial-prefills above 1 partial-prefills)", choices=(*POLICIES, DISAGGREGATED), metavar=None,
    )  # fmt: skip
    add("--max-num-batched-tokens", "token budget of a step (default: vLLM's on this GPU)", type=count)
    add("--max-num-seqs", "sequences running at a time (default: vLLM's on this GPU)", type=count)
    add(
        "--enable-chunked-prefill",
        "vLLM's flag for the policy (default: as the policy is)",
        action=argparse.BooleanOptionalAction,
    )
    add(
        "--enable-prefix-caching",
        "keep KV blocks of prompts for those that begin alike (default: on)",
        action=argparse.BooleanOptionalAction,
        default=True,
    )
    add(
        "--long-prefill-token-threshold", "most prompt tokens of one sequence in a step while there are others; with "
        "partial prefills what makes a prompt long (default: 0, no limit; 4%% of the context with those)",
        type=_number(int, least=0), default=0,
    )  # fmt: skip
    add("--max-num-partial-prefills", "prompts computed at a time (default: 1)", type=count, default=1)
    add("--max-long-partial-prefills", "long ones among them (default: 1)", type=count, default=1)
    add("--kv-tokens", "tokens the KV cache holds (default: what the GPU's memory leaves)", type=count)
    add("--step-overhead-ms", "of every step (default: fitted)", type=not_negative, metavar="MS")
    add("--seq-overhead-us", "of every sequence in a step (default: fitted)", type=not_negative, metavar="US")
    add("--prefill-engines", "GPUs that compute prompts, if disaggregated (default: 1)", type=count, default=1)
    add("--decode-engines", "GPUs that decode, if disaggregated (default: 1)", type=count, default=1)
    add(
        "--kv-transfer-gb-per-s", "from each prefill engine (default: %(default)s, a 400 Gbit/s link)", type=positive,
        default=50.0, metavar="X",
    )  # fmt: skip
    add("--time-scale", "real seconds per simulated second (default: 1)", type=positive, default=1.0, metavar="X")
    add("--ttft-ms", "with --itl-ms: no batching, each first token after this", type=not_negative, metavar="MS")
    add("--itl-ms", "with --ttft-ms: no batching, each further token after this", type=not_negative, metavar="MS")
    add("--jitter-ms", "draw both evenly from this much around them", type=not_negative, default=0.0, metavar="MS")


def _add_front(group: argparse._ArgumentGroup) -> None:
    add = _adder(group)
    add("--like", "the quirks of a server (default: %(default)s)", choices=LIKE, default="vllm", metavar=None)
    add("--quirks", "changes to these, such as role=early,usage=finish: docs/simulator.md", default="", metavar="LIST")
    add("--stream-interval", "tokens a chunk: vLLM's name for tokens_per_chunk", type=_number(int, least=1))
    add("--faults", "what goes wrong in a share of the requests, such as cut=5", default="", metavar="LIST")
    add("--fault-rate", "that share (default: 0)", type=_number(float, least=0, most=1), default=0.0, metavar="X")


def settings(options: argparse.Namespace) -> tuple[Cost, Config, str, int]:
    """The cost, the scheduler's config, the policy and max_model_len. Raises ValueError where vLLM would refuse to start,
    mostly in its words (vllm/config/scheduler.py)."""
    cost = _cost(options)
    kv_tokens = (options.kv_tokens or cost.kv_tokens) // BLOCK_SIZE * BLOCK_SIZE
    if not kv_tokens:
        raise ValueError(f"--kv-tokens {options.kv_tokens} is less than one block of {BLOCK_SIZE}")
    max_model_len = options.max_model_len or min(cost.model.max_model_len, kv_tokens)
    if max_model_len > cost.model.max_model_len:
        raise ValueError(f"--max-model-len {max_model_len} is more than {options.model}'s {cost.model.max_model_len}")
    if max_model_len > kv_tokens:
        raise ValueError(f"--max-model-len {max_model_len} does not fit in the KV cache of {kv_tokens} tokens")
    policy = _policy(options)
    whole = policy in WHOLE_PROMPTS
    default = max(max_model_len, cost.gpu.max_num_batched_tokens) if whole else cost.gpu.max_num_batched_tokens
    budget = options.max_num_batched_tokens or default
    if whole and budget < max_model_len:
        raise ValueError(
            f"max_num_batched_tokens ({budget}) is smaller than max_model_len ({max_model_len}), and {policy} computes a "
            "prompt in one step: increase --max-num-batched-tokens or decrease --max-model-len"
        )
    max_num_seqs = options.max_num_seqs or min(cost.gpu.max_num_seqs, budget)
    if max_num_seqs > budget:
        raise ValueError(f"--max-num-seqs {max_num_seqs} is more than --max-num-batched-tokens {budget}")
    threshold = options.long_prefill_token_threshold
    if threshold > max_model_len:
        raise ValueError(f"--long-prefill-token-threshold {threshold} is more than --max-model-len {max_model_len}")
    num, num_long = options.max_num_partial_prefills, options.max_long_partial_prefills
    if num > budget:
        raise ValueError(f"--max-num-partial-prefills {num} is more than --max-num-batched-tokens {budget}")
    if num_long > num:
        raise ValueError(f"--max-long-partial-prefills {num_long} is more than --max-num-partial-prefills {num}")
    config = Config(
        max_num_batched_tokens=budget,
        max_num_seqs=max_num_seqs,
        kv_tokens=kv_tokens,
        enable_prefix_caching=options.enable_prefix_caching,
        long_prefill_token_threshold=threshold or (int(max_model_len * 0.04) if num > 1 else 0),
        max_num_partial_prefills=num,
        max_long_partial_prefills=num_long,
    )
    return cost, config, policy, max_model_len


def session_header(options: argparse.Namespace) -> str:
    """That the router looks at; none where its route has none. Raises ValueError."""
    if options.route == "prefix" and (options.ttft_ms is not None or not options.enable_prefix_caching):
        raise ValueError("--route prefix needs a prefix cache: leave out --no-enable-prefix-caching and --ttft-ms")
    if options.route != ROUTES[0] and options.replicas == 1:
        raise ValueError(f"--route {options.route} needs --replicas of at least 2")
    if options.route_header and options.route not in SESSION_HEADERS:
        raise ValueError(f"--route-header needs --route {' or '.join(SESSION_HEADERS)}, not {options.route}")
    return options.route_header or SESSION_HEADERS.get(options.route, "")


def quirks(options: argparse.Namespace) -> Quirks:
    """Of every request. Raises ValueError, also for --faults that would not do."""
    found = parse(options.quirks, LIKE[options.like])
    if options.stream_interval:
        found = parse(f"tokens_per_chunk={options.stream_interval}", found)
    parse(options.faults, found)
    if bool(options.fault_rate) != bool(options.faults):
        raise ValueError("--faults and --fault-rate say together what goes wrong how often: give both or neither")
    return found


def _cost(options: argparse.Namespace) -> Cost:
    overheads = {}
    if options.step_overhead_ms is not None:
        overheads["step_overhead_s"] = options.step_overhead_ms / 1e3
    if options.seq_overhead_us is not None:
        overheads["seq_overhead_s"] = options.seq_overhead_us / 1e6
    return Cost(model=MODELS[options.model], gpu=GPUS[options.gpu], **overheads)


def _policy(options: argparse.Namespace) -> str:
    chunking, partial = options.enable_chunked_prefill, options.max_num_partial_prefills > 1
    policy: str = options.policy or ("partial-prefills" if partial else "mixed" if chunking is False else "chunked")
    if chunking is not None and chunking == (policy in WHOLE_PROMPTS):
        raise ValueError(f"--{'' if chunking else 'no-'}enable-chunked-prefill contradicts --policy {policy}")
    if partial and policy != "partial-prefills":
        raise ValueError(f"--max-num-partial-prefills needs --policy partial-prefills, not {policy}")
    if (options.ttft_ms is None) != (options.itl_ms is None):
        raise ValueError("--ttft-ms and --itl-ms select the fixed-latency mode together: give both or neither")
    if options.jitter_ms and options.ttft_ms is None:
        raise ValueError("--jitter-ms needs --ttft-ms and --itl-ms")
    return policy


def _adder(group: argparse._ArgumentGroup) -> Callable[..., None]:
    def add(flag: str, text: str, **how: Any) -> None:
        without_value = isinstance(how.get("action"), (str, type))
        group.add_argument(flag, help=text, **(how if without_value else {"metavar": "N", **how}))

    return add


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


# -- the simulator as a program --------------------------------------------------------------------------------------


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
    header = session_header(options)
    engines = [make_engine(options, cost, config, policy, loop) for _ in range(options.replicas)]
    about = engines[0][1] + (f"; {len(engines)} replicas, {options.route}" if len(engines) > 1 else "")
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
        route=options.route,
        session_header=header,
    )
    server = Server([engine for engine, _ in engines], front)

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
