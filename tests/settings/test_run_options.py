"""Settings: every rule says its line, what is possible is let through, and a host is understood in
all its forms."""

import pytest

from locust_llm.settings import settings_validation
from locust_llm.settings.run_options import Settings, make_stage_settings
from locust_llm.settings.server_address import (
    join_server_url,
    normalise_base_url,
    split_replica_urls,
)
from locust_llm.settings.settings_validation import validate_settings

NEEDS_STREAMING = "needs --streaming: without a stream there is no time to first token"

MISTAKES = [
    (
        {"hosts": ("http://a", "http://u:p@b")},
        [
            "--host must not hold a user and a password, as reports show it: use --header "
            "'Authorization: Basic ...'"
        ],
    ),
    (
        {"hosts": ("http://a", "http://b"), "aa": True, "run_time_s": 600.0, "users": 1},
        ["base and candidate have one address each: use one --host (--base) and one --candidate"],
    ),
    (
        {"session_header": "X Y"},
        ["--session-header takes the name of a header, and 'X Y' is not a valid one"],
    ),
    ({"echo_header": "Host"}, ["--echo-header Host: the load generator sets this header itself"]),
    (
        {"backend_header": "Set-Cookie"},
        [
            "--backend-header Set-Cookie may hold a secret, and its values are written to "
            "reports: use another header"
        ],
    ),
    (
        {"echo_header": "x-route", "backend_header": "X-Route"},
        [
            "--backend-header X-Route may hold a secret, and its values are written to reports: "
            "use another header"
        ],
    ),
    (
        {"sweep": "users=1,2"},
        [
            "--sweep 'users=1,2': write AXIS=VALUES with one of concurrency, request-rate, "
            "prefill-concurrency, input-tokens, such as concurrency=1..64"
        ],
    ),
    (
        {"sweep": "concurrency=1,2", "users": 3},
        ["--sweep concurrency=... and -u exclude each other: leave out -u"],
    ),
    (
        {"sweep": "concurrency=1,2", "request_rate": 3.0},
        ["--sweep concurrency=... and a request rate exclude each other: leave out a request rate"],
    ),
    (
        {"sweep": "request-rate=1,2", "request_count": 3},
        [
            "--sweep request-rate=... and --request-count exclude each other: leave out "
            "--request-count"
        ],
    ),
    (
        {"sweep": "prefill-concurrency=1..64", "users": 32},
        [
            "--sweep prefill-concurrency=64: --prefill-concurrency 64 is above the 32 users (-u): "
            "at most 32 requests can run at the same time"
        ],
    ),
    (
        {"sweep": "concurrency=1,2", "repeats": 2},
        [
            "--sweep and --repeats exclude each other: run the sweep several times and compare "
            "the runs"
        ],
    ),
    (
        {"repeats": 2},
        ["--repeats needs a length of each repeat: add -t, --request-count or --num-sessions"],
    ),
    (
        {"find_max": True, "slo": ("ttft p99 < 5s",)},
        ["--find-max needs --sweep: it searches the range of the sweep"],
    ),
    (
        {"find_max": True, "sweep": "concurrency=1,2"},
        ["--find-max needs an SLO (--slo): it searches for the highest load that meets the SLOs"],
    ),
    (
        {"find_max": True, "sweep": "prefill-concurrency=1,2", "slo": ("ttft p99 < 5s",)},
        ["--sweep prefill-concurrency=... and --find-max exclude each other: leave out --find-max"],
    ),
    (
        {"stage_duration": "9..3"},
        ["--stage-duration '9..3': write 10..120 (minimum and maximum seconds) or one number"],
    ),
    ({"gpu_hour": 2.0}, ["--gpu-hour needs the number of GPUs (--gpus)"]),
    ({"user_centric_rate": 5.0, "users": 5, "processes": 2}, []),
    (
        {"working_set": 9},
        ["--working-set has no effect alone: add --prefix-cache-hit-rate"],
    ),
    (
        {"prefix_cache_hit_rate": 0.0, "working_set": 9},
        ["--prefix-cache-hit-rate 0 repeats no tokens: leave out --working-set"],
    ),
    (
        {"prefix_cache_hit_rate": 80.0, "shared_system_prompt_length": 10},
        [
            "--prefix-cache-hit-rate and --shared-system-prompt-length exclude each other: it "
            "would raise the hit rate"
        ],
    ),
    (
        {"prefix_cache_hit_rate": 80.0, "num_prefix_prompts": 1, "prefix_prompt_length": 10},
        [
            "--prefix-cache-hit-rate and --num-prefix-prompts exclude each other: they would "
            "raise the hit rate"
        ],
    ),
    (
        {"prefix_cache_hit_rate": 80.0, "input_file": "x"},
        [
            "--prefix-cache-hit-rate and --input-file exclude each other: the prompts of a file "
            "cannot be changed"
        ],
    ),
    (
        {"prefix_cache_hit_rate": 80.0, "endpoint_type": "embeddings", "streaming": False},
        [
            "--prefix-cache-hit-rate and --endpoint-type embeddings exclude each other: it has no "
            "prefix cache"
        ],
    ),
    (
        {"prefix_cache_hit_rate": 80.0, "cache_block_size": 128},
        [
            "--prefix-cache-hit-rate 80 is more than prompts of 550 tokens can repeat of blocks of "
            "128: 70% at most"
        ],
    ),
    (
        {
            "prefix_cache_hit_rate": 80.0,
            "working_set": 9,
            "cache_block_size": 16,
            "cache_tokens": 99,
        },
        [],
    ),
    ({"user_centric_rate": 5.0}, ["--user-centric-rate needs the number of users (-u)"]),
    (
        {"request_rate": 5.0, "fixed_schedule": True, "input_file": "x"},
        ["--fixed-schedule and --request-rate exclude each other: give one of them"],
    ),
    ({"idle_cap": 60.0}, ["--idle-cap needs --input-file"]),
    (
        {"trajectory_start": "0.9..0.2", "input_file": "x"},
        ["--trajectory-start 0.9..0.2: must be shares from 0 to below 1, the lower one first"],
    ),
    (
        {"trajectory_start": "0.2", "input_file": "x", "fixed_schedule": True},
        [
            "--trajectory-start and --fixed-schedule exclude each other: the timestamps of a "
            "trace mark the starts of sessions"
        ],
    ),
    (
        {"model": "m", "model_mix": "m=1,n=2"},
        ["--model and --model-mix exclude each other: give one of them"],
    ),
    (
        {"slo": ("ttft p99 < 5",)},
        [
            "SLO 'ttft p99 < 5': the limit of ttft has no unit: there are ms, s and us, such as 500ms"
        ],
    ),
    ({"prefill_concurrency": 0}, ["--prefill-concurrency must be at least 1, got 0"]),
    ({"prefill_concurrency": -3, "users": 2}, ["--prefill-concurrency must be at least 1, got -3"]),
    ({"warmup_prefill_concurrency": 0}, ["--warmup-prefill-concurrency must be at least 1, got 0"]),
    (
        {"prefill_concurrency": 31, "users": 30},
        [
            "--prefill-concurrency 31 is above the 30 users (-u): at most 30 requests can run at "
            "the same time"
        ],
    ),
    (
        {"prefill_concurrency": 3, "warmup_prefill_concurrency": 31, "users": 30},
        [
            "--warmup-prefill-concurrency 31 is above the 30 users (-u): at most 30 requests can "
            "run at the same time"
        ],
    ),
    ({"prefill_concurrency": 2, "processes": 3}, []),
    ({"prefill_concurrency": 3, "streaming": False}, [f"--prefill-concurrency {NEEDS_STREAMING}"]),
    (
        {"warmup_prefill_concurrency": 3, "streaming": False},
        [f"--warmup-prefill-concurrency {NEEDS_STREAMING}"],
    ),
    (
        {"prefill_concurrency_ramp_duration": 30.0},
        ["--prefill-concurrency-ramp-duration has nothing to ramp: add --prefill-concurrency"],
    ),
    (
        {"warmup_prefill_concurrency_ramp_duration": 30.0},
        [
            "--warmup-prefill-concurrency-ramp-duration has nothing to ramp: add "
            "--warmup-prefill-concurrency"
        ],
    ),
    (
        {"prefill_concurrency": 5, "prefill_concurrency_ramp_duration": 0.0},
        ["--prefill-concurrency-ramp-duration must be above 0 seconds, got 0"],
    ),
    (
        {"prefill_concurrency": 5, "warmup_prefill_concurrency_ramp_duration": -0.5},
        ["--warmup-prefill-concurrency-ramp-duration must be above 0 seconds, got -0.5"],
    ),
    (
        {"synthetic_input_tokens_mean": 0.9},
        ["--synthetic-input-tokens-mean must be at least 1, got 0.9"],
    ),
    ({"output_tokens_mean": 0.0}, ["--output-tokens-mean must be at least 1, got 0"]),
    (
        {"synthetic_input_tokens_stddev": -1.0},
        ["--synthetic-input-tokens-stddev must be at least 0, got -1"],
    ),
    ({"output_tokens_stddev": -1.0}, ["--output-tokens-stddev must be at least 0, got -1"]),
    ({"request_count": 0}, ["--request-count must be at least 1, got 0"]),
    ({"warmup_request_count": 0}, ["--warmup-request-count must be at least 1, got 0"]),
    ({"wait_for_model_timeout_s": -1.0}, ["--wait-for-model-timeout must be at least 0, got -1"]),
    ({"request_timeout_s": 0.0}, ["--request-timeout must be above 0, got 0"]),
    (
        {"host": "http://user:s3cret@localhost:8000"},
        [
            "--host must not hold a user and a password, as reports show it: use --header "
            "'Authorization: Basic ...'"
        ],
    ),
    (
        {"metrics_url": ("http://u:s3cret@replica/metrics",)},
        ["--metrics-url must not hold a key or a password, as reports show it"],
    ),
    (
        {"metrics_url": ("ftp://replica/metrics",)},
        [
            "--metrics-url 'ftp://replica/metrics' is not a metrics URL: write "
            "http://HOST:PORT/metrics"
        ],
    ),
    (
        {"metrics_url": ("http://replica/metrics",), "server_metrics": False},
        ["--metrics-url and --no-server-metrics exclude each other: leave one of them out"],
    ),
    ({"percentiles": (50.0, 0.0)}, ["--percentiles must be above 0 and at most 99.9, got 0"]),
    ({"percentiles": (99.95,)}, ["--percentiles must be above 0 and at most 99.9, got 99.95"]),
    ({"percentiles": (float("nan"),)}, ["--percentiles must be above 0 and at most 99.9, got nan"]),
    ({"output_tokens_mean": float("nan")}, ["--output-tokens-mean must be at least 1, got nan"]),
    (
        {"prefill_concurrency": 9, "users": 4, "streaming": False, "output_tokens_mean": 0.0},
        [
            "--output-tokens-mean must be at least 1, got 0",
            "--prefill-concurrency 9 is above the 4 users (-u): at most 4 requests can run at the "
            "same time",
            f"--prefill-concurrency {NEEDS_STREAMING}",
        ],
    ),
]


@pytest.mark.parametrize(("asked", "lines"), MISTAKES)
def test_what_cannot_be_is_said_in_one_line_each(
    asked: dict[str, object], lines: list[str]
) -> None:
    assert list(validate_settings(Settings(**asked))) == lines


POSSIBLE = [
    {},
    # the limit of a stage is at most its users
    {"sweep": "concurrency=1..8", "prefill_concurrency": 4},
    {"sweep": "request-rate=1..8", "users": 30, "prefill_concurrency": 4},
    {"sweep": "prefill-concurrency=1..8", "users": 8},
    {"sweep": "input-tokens=100..1600", "request_rate": 2.0},
    {"repeats": 3, "run_time_s": 5.0, "request_rate": 2.0},
    # AIPerf's constraints: at most the concurrency, if both are set; streaming
    {"prefill_concurrency": 30, "users": 30},
    {"prefill_concurrency": 1, "users": 1},
    {"prefill_concurrency": 1000},  # users come from the web form
    {"streaming": False},
    {"prefill_concurrency": 3, "processes": 3, "users": 30},
    {"prefill_concurrency": 5, "prefill_concurrency_ramp_duration": 0.1},
    # what the warmup does not say falls back to the main phase, or may be said for the warmup alone
    {"prefill_concurrency": 5, "warmup_prefill_concurrency_ramp_duration": 30.0},
    {"warmup_prefill_concurrency": 5},
    {"warmup_prefill_concurrency": 5, "warmup_prefill_concurrency_ramp_duration": 30.0},
    {"synthetic_input_tokens_mean": 1.0, "output_tokens_mean": 1.0, "request_count": 1},
    {"percentiles": (0.1, 99.9)},
    {"host": "http://localhost:8000/for@all"},
]


@pytest.mark.parametrize("asked", POSSIBLE)
def test_what_can_be_passes(asked: dict[str, object]) -> None:
    assert list(validate_settings(Settings(**asked))) == []


def test_the_warmup_falls_back_to_the_main_phase() -> None:
    main = Settings(prefill_concurrency=5, prefill_concurrency_ramp_duration=30.0)
    assert (main.warmup_limit, main.warmup_ramp_s) == (5, 30.0)
    own = Settings(
        prefill_concurrency=5,
        prefill_concurrency_ramp_duration=30.0,
        warmup_prefill_concurrency=2,
        warmup_prefill_concurrency_ramp_duration=10.0,
    )
    assert (own.warmup_limit, own.warmup_ramp_s) == (2, 10.0)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("localhost:8000/", "http://localhost:8000"),
        ("localhost:8000/v1", "http://localhost:8000"),
        ("http://localhost:8000", "http://localhost:8000"),
        ("http://localhost:8000/v1/", "http://localhost:8000"),
        ("https://api.example.com", "https://api.example.com"),
        ("https://api.example.com/v1", "https://api.example.com"),
        ("https://example.com/openai/v1/", "https://example.com/openai"),
        ("example.com/a/v1/?api-version=1&b=", "http://example.com/a?api-version=1&b="),
        ("https://example.com/openai", "https://example.com/openai"),
        ("https://example.com/v11", "https://example.com/v11"),
        ("example.com", "http://example.com"),
        ("10.0.0.1:80", "http://10.0.0.1:80"),
        ("[::1]:8000", "http://[::1]:8000"),
        ("http://[fe80::1]:8000/v1", "http://[fe80::1]:8000"),
        ("", ""),
    ],
)
def test_a_host_in_all_its_forms(host: str, url: str) -> None:
    assert normalise_base_url(host) == url
    assert normalise_base_url(url) == url


@pytest.mark.parametrize(
    ("address", "path", "url"),
    [
        ("http://x", "/v1/models", "http://x/v1/models"),
        ("http://x", "/v1/models?a=1", "http://x/v1/models?a=1"),
        ("http://x/y?api-version=1", "/metrics", "http://x/y/metrics?api-version=1"),
        ("http://x?a=1", "/m?b=2", "http://x/m?b=2&a=1"),
        ("http://x?a=1&b=&a=2", "/m?a=3", "http://x/m?a=3&b="),  # the path's own wins
        ("http://x?%61=1", "/m?a=3", "http://x/m?a=3"),
    ],
)
def test_a_path_at_an_address(address: str, path: str, url: str) -> None:
    assert join_server_url(address, path) == url


def test_several_hosts() -> None:
    assert split_replica_urls("a:1, http://a:1/v1,https://b/v1/ ,") == ("http://a:1", "https://b")
    assert (
        split_replica_urls("a:1")
        == split_replica_urls("a:1,http://a:1/")
        == split_replica_urls("")
        == ()
    )
    assert normalise_base_url(" a:1 ,b:2") == "http://a:1"
    assert Settings(host="x").addresses == ("x",)
    assert Settings(host="x", hosts=("x", "y")).addresses == ("x", "y")


def test_a_stage_is_a_run_of_its_own() -> None:
    asked = Settings(sweep="concurrency=2,8", prefill_concurrency=4, find_max=True)
    assert asked.max_users_asked == 8
    assert [
        (s.users, s.prefill_concurrency, s.sweep, s.staged)
        for s in (make_stage_settings(asked, "concurrency", v) for v in (2, 8))
    ] == [
        (2, 2, None, None),
        (8, 4, None, None),
    ]
    rates = Settings(sweep="request-rate=0.5,2")
    assert rates.open_loop
    assert make_stage_settings(rates, "request-rate", 0.5).request_rate == 0.5
    assert Settings(repeats=3).staged == ("repeat", (1, 2, 3))


def test_a_rule_on_valid_answers_needs_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Settings(slo=("schema_valid_rate > 90%",))
    assert not list(validate_settings(asked))
    monkeypatch.setattr(settings_validation, "has_jsonschema", lambda: False)
    (why,) = validate_settings(asked)
    assert why.endswith("pip install 'locust-llm[schema]'")
