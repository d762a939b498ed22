"""Identity: each kind of server is known by its own pages, and no page is asked for in vain."""

import json
from pathlib import Path
from typing import Any

import pytest

from locust_llm.server.http_get import FetchedResponse, FetchFailed
from locust_llm.server.identity import (
    ServerIdentity,
    count_template_head_tokens,
    identify_server,
    is_simulator,
    name_gateway,
)
from locust_llm.settings.run_options import Settings

CAPTURES = Path(__file__).parents[1] / "captures"
CACHE_CONFIG = 'vllm:cache_config_info{block_size="128",cache_dtype="auto",num_gpu_blocks="4096",num_cpu_blocks="None"} 1.0\n'
SGLANG = {
    "version": "0.5.4",
    "tp_size": 2,
    "api_key": "secret",
    "model_path": "/m",
    "disable_radix_cache": False,
    "quantization": None,
}


def asked(
    pages: dict[str, Any], header: str = "", owner: str | None = None
) -> tuple[ServerIdentity | None, list[str]]:
    """(what it is, the paths that were asked for)."""
    paths: list[str] = []

    def get(path: str) -> bytes | None:
        paths.append(path)
        page = pages.get(path)
        return (
            None
            if page is None
            else page.encode()
            if isinstance(page, str)
            else json.dumps(page).encode()
        )

    models = {"data": [{"id": "m", **({"owned_by": owner} if owner else {})}]}
    return identify_server(get, header, json.dumps(models).encode()), paths


@pytest.mark.parametrize(
    ("header", "via", "server", "gateway"),
    [
        ("uvicorn", "", "vLLM 0.33.0", ""),
        ("", "", "", ""),
        ("nginx/1.24.0", "", "vLLM 0.33.0", "nginx/1.24.0"),
        ("envoy", "", "", "envoy"),
        ("cloudflare", "", "cloudflare", "cloudflare"),
        ("uvicorn", "1.1 Caddy", "vLLM 0.33.0", "Caddy"),
        ("uvicorn", "HTTP/1.1 a.example, 1.1 b.example", "vLLM 0.33.0", "a.example"),
        ("uvicorn", "", "LiteLLM 1.106.0", "LiteLLM 1.106.0"),
        ("nginxish", "malformed", "", ""),
    ],
)
def test_a_proxy_in_front_is_named_by_the_headers_that_it_writes(
    header: str, via: str, server: str, gateway: str
) -> None:
    assert name_gateway(header, via, server) == gateway


def test_the_simulator_is_known_by_its_header_or_as_the_owner_of_the_models() -> None:
    owned = b'{"data": [{"id": "m", "owned_by": "locust-llm-simulator"}]}'
    other = b'{"data": [{"id": "m", "owned_by": "vllm"}]}'
    assert is_simulator("nginx", owned)
    assert is_simulator("locust-llm-simulator", b"")
    assert not is_simulator("uvicorn", other)
    assert not is_simulator("nginx", b"<html>")


def test_vllm_by_its_models() -> None:
    found, paths = asked(
        {"/version": {"version": "0.32.0"}, "/metrics": CACHE_CONFIG}, "uvicorn", "vllm"
    )
    assert found == ServerIdentity(
        "vLLM 0.32.0", (("block_size", "128"), ("cache_dtype", "auto"), ("num_gpu_blocks", "4096"))
    )
    assert paths == ["/metrics", "/version"]


def test_vllm_by_its_metrics_where_others_own_the_models() -> None:
    page = (CAPTURES / "vllm_metrics.txt").read_text()
    found, _ = asked({"/version": {"version": "0.32.0"}, "/metrics": page}, "uvicorn")
    assert found is not None
    assert found.name == "vLLM 0.32.0"


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_of_sglangs_arguments_neither_key_nor_path(path: str) -> None:
    found, _ = asked({path: SGLANG}, "uvicorn", "sglang")
    assert found == ServerIdentity(
        "SGLang 0.5.4", (("tp_size", "2"), ("disable_radix_cache", "false"))
    )


def test_others() -> None:
    props = {
        "build_info": "b8681-abc",
        "total_slots": 4,
        "default_generation_settings": {"n_ctx": 16384},
    }
    assert asked({"/props": props}, "llama.cpp", "llamacpp") == (
        ServerIdentity("llama.cpp b8681-abc", (("total_slots", "4"), ("n_ctx", "16384"))),
        ["/props"]
    )  # fmt: skip
    info = {"model_id": "m", "version": "3.3.4", "max_input_tokens": 4095, "docker_label": "x"}
    assert asked({"/info": info})[0] == ServerIdentity("TGI 3.3.4", (("max_input_tokens", "4095"),))
    assert asked({"/health/readiness": {"litellm_version": "1.106.2"}}, owner="openai")[
        0
    ] == ServerIdentity("LiteLLM 1.106.2")
    # without a key it tells no version, and its description may come too late
    alive = {"/health/readiness": {"status": "healthy"}, "/health/liveliness": '"I\'m alive!"'}
    assert asked(alive, owner="openai")[0] == ServerIdentity("LiteLLM")
    described = {"info": {"title": "LiteLLM API", "version": "1.106.2"}, "paths": {}}
    assert asked({**alive, "/openapi.json": described})[0] == ServerIdentity("LiteLLM 1.106.2")
    assert asked({"/openapi.json": described}, owner="openai")[0] == ServerIdentity(
        "LiteLLM 1.106.2"
    )
    assert asked({"/openapi.json": {"paths": {"/load_model": {}}}}, "uvicorn")[0] == ServerIdentity(
        "transformers serve"
    )
    assert asked(
        {"/metrics": "trtllm_kv_cache_utilization 0\n", "/version": {"version": "1.2"}}, "uvicorn"
    )[0] == ServerIdentity("TensorRT-LLM 1.2")


def test_a_server_with_a_name_is_asked_nothing() -> None:
    assert asked({}, "cloudflare", "openai") == (None, [])


def test_of_a_server_without_any_each_page_once() -> None:
    assert asked({}, "uvicorn") == (
        None,
        ["/health/readiness", "/health/liveliness", "/metrics", "/info", "/openapi.json"],
    )


@pytest.mark.parametrize(
    "page",
    [
        "",
        "[]",
        "null",
        '{"version": 7}',
        '{"version": {"a": 1}}',
        "<html>",
        "\x00",
        '{"paths": []}',
    ],
)
def test_pages_of_another_kind(page: str) -> None:
    paths = (
        "/metrics",
        "/version",
        "/server_info",
        "/get_server_info",
        "/props",
        "/info",
        "/health/readiness",
        "/openapi.json",
    )
    for owner in (None, "vllm", "sglang", "llamacpp", "tensorrt_llm"):
        found, _ = asked(dict.fromkeys(paths, page), "uvicorn", owner)
        assert found is None or "7" not in found.name


def test_a_page_that_does_not_come_ends_the_questions() -> None:
    def get(path: str) -> bytes | None:
        raise FetchFailed("timeout", "no complete response within 2 s")

    assert identify_server(get, "uvicorn", b"not JSON") is None


@pytest.mark.parametrize(
    ("bodies", "head"),
    [
        (({"tokens": [1, 7, 8, 40, 9]}, {"tokens": [1, 7, 8, 50, 51, 9]}), 3),
        (({"tokens": [40, 9]}, {"tokens": [50, 9]}), 0),
        (({"count": 5}, {"count": 6}), None),
        (({"tokens": "many"}, {"tokens": [1]}), None),
    ],
)
def test_the_head_of_a_chat_template_is_what_two_texts_have_in_common(
    bodies: Any, head: int | None
) -> None:
    answers = iter(bodies)
    found = count_template_head_tokens(
        lambda *words, **more: FetchedResponse(200, "", json.dumps(next(answers)).encode()),
        Settings(),
        "m",
    )
    assert found == head
