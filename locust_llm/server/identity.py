"""Identity: the server's name, version and flags, as far as it reports them, and its chat
template's head.

Each kind has its own page: vLLM /version and the cache's configuration in /metrics, SGLang
/server_info (before 0.5 /get_server_info), llama.cpp /props, TGI /info, LiteLLM /health/readiness.

The models' maker (``owned_by``) or the Server header shows which page to request. A header that
names only the framework shows nothing. Then all pages are tried, FastAPI's /openapi.json last.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from operator import eq
from typing import Any, Final, NamedTuple

import msgspec

from locust_llm.client.request_exchange import SIMULATOR
from locust_llm.protocols.protocol_registry import PROTOCOLS
from locust_llm.records.server_metrics_parser import ENGINES
from locust_llm.server.http_get import FetchedResponse, FetchFailed, decode_response
from locust_llm.settings.run_options import Settings

TIMEOUT_S: Final = 2.0
"""The timeout of each page."""
PROXIES: Final = ("nginx", "openresty", "tengine", "envoy", "istio-envoy", "caddy")
"""The names by which proxies replace the Server header."""
HOSTED_PROXIES: Final = ("cloudflare", "cloudfront", "awselb", "akamaighost", "google frontend")
"""Proxies of hosting companies do so too. The server behind them is not asked for its pages."""
UNNAMED: Final = ("", "uvicorn", "hypercorn", "gunicorn", "granian", *PROXIES)
"""Server headers of frameworks and proxies: the server itself gave no name."""
LITELLM: Final = "LiteLLM"
TRANSFORMERS: Final = "transformers serve"
DYNAMO: Final = "Dynamo"
"""It is a router in front of other engines."""
INFERENCE_SERVERS: Final = (
    *(name for name in ENGINES.values() if name != DYNAMO),
    TRANSFORMERS,
    SIMULATOR,
)
"""The names of servers that compute the answers."""
MAX_FLAGS: Final = 24
_CACHE_CONFIG: Final = re.compile(r"^vllm:cache_config_info\{([^}\n]{1,8000})\}", re.MULTILINE)
_LABEL: Final = re.compile(r'([a-z_]{1,60})="([^"\\]{0,200})"')

# those that say how it computes; never a path, an address or a key
VLLM: Final = (
    "block_size",
    "cache_dtype",
    "enable_prefix_caching",
    "gpu_memory_utilization",
    "num_gpu_blocks",
)
SGLANG: Final = (
    "tp_size", "pp_size", "dp_size", "ep_size", "dtype", "quantization", "kv_cache_dtype",
    "context_length",
    "mem_fraction_static", "max_running_requests", "max_total_num_tokens", "chunked_prefill_size",
    "max_prefill_tokens",
    "schedule_policy", "disable_radix_cache", "enable_mixed_chunk", "attention_backend",
    "speculative_algorithm",
    "speculative_num_draft_tokens", "disaggregation_mode",
)  # fmt: skip
TGI: Final = (
    "model_dtype", "max_concurrent_requests", "max_input_length", "max_input_tokens",
    "max_total_tokens",
    "max_batch_prefill_tokens", "max_batch_total_tokens", "max_waiting_tokens",
    "waiting_served_ratio",
)  # fmt: skip


class ServerIdentity(NamedTuple):
    """Texts of the server, not made safe to show yet."""

    name: str
    """The name with its version, if it has one: ``vLLM 0.32.0``."""
    flags: tuple[tuple[str, str], ...] = ()


Get = Callable[[str], bytes | None]
"""Returns the body of a response with status 200 for a path. Raises FetchFailed."""


class _Ids(msgspec.Struct):
    tokens: list[int] = []


class _Card(msgspec.Struct):
    owned_by: Any = None


class _Cards(msgspec.Struct):
    data: list[_Card]


def identify_server(get: Get, header: str, models: bytes) -> ServerIdentity | None:
    """``models`` is the answer of /v1/models. None: nothing but the header is known. A page that
    does not come in time ends the queries."""
    try:
        return next(filter(None, (way(get) for way in _ways(header, _list_owners(models)))), None)
    except FetchFailed:
        return None


def is_simulator(header: str, models: bytes) -> bool:
    """A proxy replaces the Server header, but passes on the owner of the models."""
    return header.startswith(SIMULATOR) or SIMULATOR in _list_owners(models)


def name_gateway(header: str, via: str, server: str) -> str:
    """The proxy or gateway in front of the server, by the Server and Via headers of its answer or
    by the server's known name. Empty: they name none."""
    proxy = _read_product(header)
    if proxy in PROXIES or proxy in HOSTED_PROXIES:
        return header
    _, _, passed = via.partition(",")[0].strip().partition(" ")  # 1.1 pseudonym (comment)
    if passed:
        return passed
    return server if server.startswith(LITELLM) else ""


def answers_itself(server: str, gateway: str) -> bool:
    """Whether a known inference server answers, with no known gateway in front of it. Gateways take a
    model out of use for all of their users when a server refuses a request."""
    return not gateway and server.startswith(INFERENCE_SERVERS)


def _list_owners(models: bytes) -> set[str]:
    cards = decode_response(models, _Cards)
    if cards is None:
        return set()
    return {card.owned_by for card in cards.data[:100] if isinstance(card.owned_by, str)}


def _read_product(header: str) -> str:
    """``nginx`` of ``nginx/1.24.0 (Ubuntu)``."""
    return header.partition("/")[0].strip().lower()


def count_template_head_tokens(
    ask: Callable[..., FetchedResponse], settings: Settings, model: str | None
) -> int | None:
    """How many tokens stand before the text of a request, as two texts with different begins have
    them in common. None: /tokenize does not show it. Raises FetchFailed."""
    ids: list[list[int]] = []
    for text in ("Yes", "7 times"):
        body = {
            "model": model,
            **PROTOCOLS[settings.endpoint_type].tokenized([{"role": "user", "content": text}]),
        }
        answer = ask("POST", "/tokenize", msgspec.json.encode(body), timeout_s=TIMEOUT_S)
        answer_fields = decode_response(answer.body, _Ids) if answer.status == 200 else None
        ids.append([] if answer_fields is None else answer_fields.tokens)
    return sum(takewhile(bool, map(eq, *ids))) if all(ids) else None


def _ways(header: str, owners: set[str]) -> Iterator[Callable[[Get], ServerIdentity | None]]:
    """The queries to try, one after the other."""
    for owner, way in OWNERS.items():
        if owner in owners:
            yield way
    if header.startswith("llama.cpp"):
        yield _llamacpp
    if _read_product(header) in UNNAMED:
        yield from (_litellm, _by_metrics, _tgi, _by_openapi)


def _vllm(get: Get) -> ServerIdentity:
    match = _CACHE_CONFIG.search((get("/metrics") or b"").decode("utf-8", "replace"))
    return ServerIdentity(_join_name_and_version("vLLM", _json(get("/version")).get("version")), _chosen(
        dict(_LABEL.findall(match[1])) if match else {}, VLLM
    ))  # fmt: skip


def _sglang(get: Get) -> ServerIdentity:
    answer_fields = _json(get("/server_info")) or _json(get("/get_server_info"))
    return ServerIdentity(
        _join_name_and_version("SGLang", answer_fields.get("version")),
        _chosen(answer_fields, SGLANG),
    )


def _llamacpp(get: Get) -> ServerIdentity:
    answer_fields = _json(get("/props"))
    if "total_slots" not in answer_fields and (
        slots := decode_response(get("/slots") or b"", list[Any])
    ):
        answer_fields = {**answer_fields, "total_slots": len(slots)}
    settings = answer_fields.get("default_generation_settings")
    inner = settings if isinstance(settings, dict) else {}
    flags = _chosen({**answer_fields, "n_ctx": inner.get("n_ctx")}, ("total_slots", "n_ctx"))
    return ServerIdentity(
        _join_name_and_version("llama.cpp", answer_fields.get("build_info")), flags
    )


def _tensorrt(get: Get) -> ServerIdentity:
    return ServerIdentity(
        _join_name_and_version("TensorRT-LLM", _json(get("/version")).get("version"))
    )


def _tgi(get: Get) -> ServerIdentity | None:
    answer_fields = _json(get("/info"))
    if not {"model_id", "version"} <= answer_fields.keys():
        return None
    return ServerIdentity(
        _join_name_and_version("TGI", answer_fields["version"]), _chosen(answer_fields, TGI)
    )


def _litellm(get: Get) -> ServerIdentity | None:
    version = _json(get("/health/readiness")).get("litellm_version")
    if version:
        return ServerIdentity(_join_name_and_version(LITELLM, version))
    # no other server spells this path so; without a key, 1.106 tells its version nowhere else
    if b"alive" not in (get("/health/liveliness") or b""):
        return None
    with suppress(FetchFailed):  # 2 MB, which a proxy that just started takes seconds to make
        return _by_openapi(get) or ServerIdentity(LITELLM)
    return ServerIdentity(LITELLM)


def _by_openapi(get: Get) -> ServerIdentity | None:
    """Identify the server by FastAPI's description. LiteLLM names itself in it. transformers has
    neither name nor version there, but a route that no other server has."""
    answer_fields = _json(get("/openapi.json"))
    info = answer_fields.get("info")
    paths = answer_fields.get("paths")
    if isinstance(info, dict) and str(info.get("title")).startswith(LITELLM):
        return ServerIdentity(_join_name_and_version(LITELLM, info.get("version")))
    return (
        ServerIdentity(TRANSFORMERS) if isinstance(paths, dict) and "/load_model" in paths else None
    )


def _by_metrics(get: Get) -> ServerIdentity | None:
    """Identify the server by the names of its metrics, whoever owns the models."""
    page = b"\n" + (get("/metrics") or b"")
    engine = next(
        (engine for prefix, engine in ENGINES.items() if b"\n" + prefix.encode() in page), None
    )
    if engine is None:
        return None
    way = _BY_ENGINE.get(engine)
    return ServerIdentity(engine) if way is None else way(get)


OWNERS: Final[Mapping[str, Callable[[Get], ServerIdentity | None]]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "llamacpp": _llamacpp,
    "tensorrt_llm": _tensorrt,
}
_BY_ENGINE: Final[Mapping[str, Callable[[Get], ServerIdentity | None]]] = {
    "vLLM": _vllm,
    "SGLang": _sglang,
    "llama.cpp": _llamacpp,
    "TensorRT-LLM": _tensorrt,
    "TGI": _tgi,
}


def _json(body: bytes | None) -> dict[str, Any]:
    """The fields of a JSON object. Empty: it is none."""
    return decode_response(body, dict[str, Any]) or {} if body is not None else {}


def _join_name_and_version(name: str, version: Any) -> str:
    known = (
        isinstance(version, str) and version and "unknown" not in version
    )  # b0-unknown: a build outside of its repository
    return f"{name} {version}" if known else name


def _chosen(answer_fields: Mapping[str, Any], names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    chosen = list[tuple[str, str]]()
    for name in names:
        value = answer_fields.get(name)
        if isinstance(value, (str, int, float)) and value not in ("", "None"):
            chosen.append((name, _format_flag(value)))
    return tuple(chosen[:MAX_FLAGS])


def _format_flag(value: str | float) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
