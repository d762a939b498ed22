"""Levels: makes stages of a sweep by hand for its plots."""

from locust_llm.report.summary_rows import LoadLevel, Row


def row(tag: str, p50: float, p99: float) -> Row:
    return Row(
        label=tag, tag=tag, unit="ms", count=400, avg=p50, percentiles={50.0: p50, 99.0: p99}
    )


def level(value: float, **other: object) -> LoadLevel:
    """Makes a level of so many users: 10 ms of TTFT per user, 100 tokens per second per user."""
    fields: dict[str, object] = {
        "number": 1, "value": value, "users": int(value), "duration_s": 10.0, "requests": 100,
        "succeeded": 100,
        "failure_rate": 0.0, "residual": 0.01, "why": "stationary", "client": "OK",
        "requests_per_s": value,
        "input_tokens_per_s": value * 1000, "output_tokens_per_s": value * 100,
        "latencies": {
            "time_to_first_token": row("time_to_first_token", 10 * value, 30 * value),
            "inter_token_latency": row("inter_token_latency", 5, 8),
            "output_token_throughput_per_user": row("output_token_throughput_per_user", 100 / value,
                200),
        },
    }  # fmt: skip
    return LoadLevel(**{**fields, **other})  # type: ignore[arg-type]
