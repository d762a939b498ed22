"""Simulator flags: declares the simulator's flags, with vLLM's names where vLLM has them."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

from .http_connection import TENANT
from .scheduling.batching_policies import POLICIES
from .scheduling.engine import ROUTES
from .scheduling.step_cost import GPUS, MODELS
from .scheduling.waiting_order import QUEUES
from .simulated_faults import LIKE
from .span_sender import PROTOCOLS

DISAGGREGATED = "disaggregated"


def add_simulator_arguments(parser: argparse.ArgumentParser) -> None:
    _add_server(parser.add_argument_group("server"))
    engine = parser.add_argument_group("engine")
    _add_engine(engine)
    _add_steps(engine)
    _add_waiting(engine)
    _add_front(parser.add_argument_group("form and faults of responses"))
    _add_times(parser.add_argument_group("reports of its own times"))


def _add_server(group: argparse._ArgumentGroup) -> None:
    add = _adder(group)
    positive = _number(float, above=0)
    count = _number(int, least=1)
    any_count = _number(int, least=0)
    add(
        "--host",
        "address to listen on (default: %(default)s)",
        default="127.0.0.1",
        metavar="ADDRESS",
    )
    add(
        "--port",
        "port to listen on; 0 chooses a free one (default: %(default)s)",
        type=_number(int, least=0, most=65535),
        default=8000,
    )
    add(
        "--served-model-name",
        "model names; responses have the first (default: --model)",
        metavar="NAME",
        nargs="+",
    )
    add(
        "--max-model-len",
        "context length (default: the model's or the KV cache's)",
        type=count,
    )
    add("--api-key", "required API key", metavar="KEY")
    add("--ssl-certfile", "TLS certificate of the server (PEM)", metavar="FILE")
    add(
        "--ssl-keyfile",
        "private key of the certificate (default: in the same file)",
        metavar="FILE",
    )
    add(
        "--ssl-ca-certs",
        "certificate authorities of required client certificates",
        metavar="FILE",
    )
    add(
        "--max-num-queued-reqs",
        "open requests above which it answers 503 (default: no limit)",
        type=any_count,
    )
    add(
        "--max-num-queued-tokens",
        "waiting prompt tokens above which it answers 503 (default: no limit)",
        type=any_count,
    )
    add(
        "--replicas",
        "engines, each with its own KV cache (default: 1)",
        type=count,
        default=1,
    )
    add(
        "--route",
        "routing of requests to engines (default: %(default)s)",
        choices=ROUTES,
        default=ROUTES[0],
        metavar=None,
    )
    add(
        "--route-header",
        "header of the session or token (default: X-Session-ID, x-session-token)",
        metavar="NAME",
    )
    add(
        "--idle-close",
        "time after which idle connections close (default: never)",
        type=positive,
        metavar="SECONDS",
    )
    add(
        "--seed",
        "seed of texts, ids, jitter and faults (default: 0)",
        type=int,
        default=0,
    )
    add(
        "--truth",
        "content of GET /truth; full: every chunk's times (default: %(default)s)",
        choices=("summary", "full"),
        default="summary",
        metavar=None,
    )


def _add_engine(group: argparse._ArgumentGroup) -> None:
    add = _adder(group)
    count = _number(int, least=1)
    add(
        "--model",
        "model to simulate (default: %(default)s)",
        choices=MODELS,
        default="llama-3.1-8b",
        metavar=None,
    )
    add(
        "--gpu",
        "GPU to simulate (default: %(default)s)",
        choices=GPUS,
        default="h100",
        metavar=None,
    )
    add(
        "--policy",
        "scheduler (default: chunked, or by vLLM's flags)",
        choices=(*POLICIES, DISAGGREGATED),
        metavar=None,
    )
    add(
        "--max-num-batched-tokens",
        "token budget of a step (default: vLLM's on this GPU)",
        type=count,
    )
    add("--max-num-seqs", "sequences running at a time (default: vLLM's on this GPU)", type=count)
    add(
        "--max-num-active-seqs",
        "lower limit on running sequences (default: none)",
        type=count,
    )
    add(
        "--enable-chunked-prefill",
        "chunked or mixed (default: set by --policy)",
        action=argparse.BooleanOptionalAction,
    )
    add(
        "--async-scheduling",
        "choose a step during the one before, as vLLM does on a GPU (default: off)",
        action=argparse.BooleanOptionalAction,
        default=False,
    )
    add(
        "--enable-prefix-caching",
        "reuse the KV blocks of equal beginnings (default: on)",
        action=argparse.BooleanOptionalAction,
        default=True,
    )
    add(
        "--long-prefill-token-threshold",
        "prompt tokens per sequence and step if others wait; with partial prefills, the length "
        "of a long prompt (default: 0, no limit; or 4%% of the context)",
        type=_number(int, least=0),
        default=0,
    )
    add(
        "--long-prefill-token-threshold-adaptive",
        "raise this limit to a sequence's share of the budget",
        action="store_true",
    )
    add(
        "--max-num-partial-prefills",
        "prompts computed at a time (default: 1)",
        type=count,
        default=1,
    )
    add(
        "--max-long-partial-prefills",
        "long prompts computed at a time (default: 1)",
        type=count,
        default=1,
    )
    add(
        "--kv-tokens",
        "tokens the KV cache holds (default: what the GPU's memory leaves)",
        type=count,
    )
    add(
        "--watermark",
        "share of KV blocks that admission keeps free (default: 0)",
        type=_number(float, least=0, below=1),
        default=0.0,
        metavar="X",
    )


def _add_steps(group: argparse._ArgumentGroup) -> None:
    """Adds flags for the time and the place of a step."""
    add = _adder(group)
    count = _number(int, least=1)
    positive = _number(float, above=0)
    not_negative = _number(float, least=0)
    add(
        "--step-overhead-ms",
        "time per step (default: fitted)",
        type=not_negative,
        metavar="MS",
    )
    add(
        "--seq-overhead-us",
        "time per sequence and step (default: fitted)",
        type=not_negative,
        metavar="US",
    )
    add(
        "--prefill-engines",
        "prefill GPUs, if disaggregated (default: 1)",
        type=count,
        default=1,
    )
    add("--decode-engines", "decode GPUs, if disaggregated (default: 1)", type=count, default=1)
    add(
        "--kv-transfer-gb-per-s",
        "link speed of each prefill engine (default: %(default)s)",
        type=positive,
        default=50.0,
        metavar="X",
    )
    add(
        "--time-scale",
        "real seconds per simulated second (default: 1)",
        type=positive,
        default=1.0,
        metavar="X",
    )
    add(
        "--ttft-ms",
        "fixed time to first token, without batching; with --itl-ms",
        type=not_negative,
        metavar="MS",
    )
    add(
        "--itl-ms",
        "fixed time between tokens; with --ttft-ms",
        type=not_negative,
        metavar="MS",
    )
    add(
        "--jitter-ms",
        "uniform variation of both times",
        type=not_negative,
        default=0.0,
        metavar="MS",
    )


def _add_waiting(group: argparse._ArgumentGroup) -> None:
    add = _adder(group)
    add(
        "--scheduling-policy",
        "order of waiting requests (default: %(default)s)",
        choices=QUEUES,
        default=QUEUES[0],
        metavar=None,
    )
    add(
        "--tenant-weight",
        f"with fair: service shares (gold=4,free=1), by header {TENANT.decode()}; others: 1",
        type=_weights,
        metavar="LIST",
    )


def _add_front(group: argparse._ArgumentGroup) -> None:
    add = _adder(group)
    add(
        "--like",
        "server to imitate (default: %(default)s)",
        choices=LIKE,
        default="vllm",
        metavar=None,
    )
    add(
        "--quirks",
        "changes to it: role=early,usage=finish (docs/how-to/simulator.md)",
        default="",
        metavar="LIST",
    )
    add(
        "--stream-interval",
        "tokens per chunk",
        type=_number(int, least=1),
    )
    add(
        "--faults",
        "faults of some responses: cut=5",
        default="",
        metavar="LIST",
    )
    add(
        "--fault-rate",
        "share of requests with a fault (default: 0)",
        type=_number(float, least=0, most=1),
        default=0.0,
        metavar="X",
    )


def _add_times(group: argparse._ArgumentGroup) -> None:
    add = _adder(group)
    add(
        "--otlp-traces-endpoint",
        "send vLLM's span of each request: http://127.0.0.1:4318/v1/traces",
        metavar="URL",
    )
    add(
        "--otlp-protocol",
        "encoding of the spans (default: %(default)s)",
        choices=PROTOCOLS,
        default="http/protobuf",
        metavar=None,
    )
    add(
        "--clock-offset",
        "offset of the clock in the spans (default: 0)",
        type=_number(float),
        default=0.0,
        metavar="SECONDS",
    )
    add(
        "--timings",
        "llama.cpp's times in the last event (default: as --like does)",
        action="store_true",
    )
    add(
        "--time-headers",
        "times in headers, which come with a stream's first token",
        action="store_true",
    )
    add(
        "--front-end-delay",
        "delay of each request before the scheduler (default: 0)",
        type=_number(float, least=0),
        default=0.0,
        metavar="MS",
    )


def _weights(text: str) -> dict[str, float]:
    """Parses tenants and their weights, as an argparse type."""
    weights = {}
    for pair in text.split(","):
        name, _, value = pair.partition("=")
        weights[name.strip()] = _number(float, above=0)(value)
    return weights


_weights.__name__ = "list of tenants"


def _adder(group: argparse._ArgumentGroup) -> Callable[..., None]:
    def add(flag: str, text: str, **how: Any) -> None:
        without_value = isinstance(how.get("action"), (str, type))
        group.add_argument(flag, help=text, **(how if without_value else {"metavar": "N", **how}))

    return add


def _number(
    kind: type[int] | type[float],
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    below: float = math.inf,
) -> Callable[[str], float]:
    """Makes an argparse type for finite numbers in a range."""

    def parse(text: str) -> float:
        value = kind(text)
        if not (least <= value <= most and above < value < below):
            bound = f"more than {above:g}" if above > -math.inf else f"at least {least:g}"
            if below < math.inf:
                bound += f" and less than {below:g}"
            if most < math.inf:
                bound = f"{least:g} to {most:g}"
            raise argparse.ArgumentTypeError(f"must be {bound}, got {text}")
        return value

    parse.__name__ = kind.__name__  # argparse names it where the text is no number at all
    return parse
