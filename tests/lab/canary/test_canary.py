"""A canary's session: in virtual time, and its stream against servers of several kinds."""

from support import unpatched_locust  # noqa: F401  before anything of Locust

# isort: split
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest
from support.tiny_server import Asked, tiny_server

from locust_llm.exit_status import ExitStatus
from locust_llm.lab.canary.canary_arithmetic import CanaryRound
from locust_llm.lab.canary.canary_command import Canary, parse_canary_duration
from locust_llm.lab.canary.canary_command import run_canary as canary_command
from locust_llm.lab.canary.canary_session import FILE, CanaryPlan, CanarySession
from locust_llm.records.server_metrics_parser import EngineSample
from locust_llm.server.server_counters import found_other_requests
from locust_llm.settings.run_options import Settings

SCHEMA = Path(__file__).parents[3] / "docs" / "schemas" / "canary-output.schema.json"
PLAN = CanaryPlan(
    every_s=20.0, for_s=120.0, window_s=60.0, output_tokens=64, input_tokens=48, token_s=1e-4
)


class Clock:
    """Virtual time; Ctrl-C comes at ``ends_s``."""

    def __init__(self, ends_s: float = 1e9) -> None:
        self.now_s, self.ends_s = 100.0, ends_s

    def now(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> bool:
        self.now_s += seconds
        return self.now_s >= self.ends_s

    def rounds(self, took_s: float, *kinds: str) -> Callable[[], CanaryRound]:
        them = itertools.cycle(kinds)

        def ask() -> CanaryRound:
            at, self.now_s, kind = self.now_s, self.now_s + took_s, next(them)
            if kind == "down":
                return CanaryRound(at=at, error="refused: connection refused")
            stalls, lost_s = (2, 0.5) if kind == "stalls" else (0, 0.0)
            return CanaryRound(
                at=at,
                ttft_s=0.05,
                gaps=63,
                watched_s=0.5 + lost_s,
                quiet_s=0.008,
                stalls=stalls,
                lost_s=lost_s,
            )

        return ask


def of(tmp_path: Path, plan: CanaryPlan = PLAN) -> tuple[CanarySession, list[str]]:
    said: list[str] = []
    return CanarySession(plan, tmp_path, said.append), said


def test_a_session_in_virtual_time(tmp_path: Path) -> None:
    session, said = of(tmp_path)
    clock = Clock()
    assert session.run(clock.rounds(1.0, "calm", "stalls"), clock.wait, clock.now) == ExitStatus.OK
    assert [one.at for one in session.rounds] == [100, 120, 140, 160, 180, 200]
    assert PLAN.promise == (
        "at most 6 requests, one at a time, each with about 48 input tokens (plus the server's "
        "template) and 64 output tokens"
    )
    assert "no stall in 500 ms watched; usual" in said[0]
    # of the last three: 2 x 0.5 of 2.5 s; so 4 stalls, and 40 % / 100 us tokens a second
    assert said[5].endswith(
        "stalls: 40% of the time, 1.6 stalls/s (others' prefills or the server's own noise, no "
        "quiet time was seen yet to "
        "distinguish them); usual gap 0% above the lowest\n"
    )
    assert "6 rounds, 0 without a response" in said[-1]
    assert "stalls: 33% of the time (" in said[-1]
    lines = (tmp_path / FILE).read_bytes().splitlines()
    assert [msgspec.json.decode(line, type=CanaryRound) for line in lines] == session.rounds
    registry = CollectorRegistry()
    registry.register(session)
    text = generate_latest(registry).decode()
    assert 'locust_llm_canary_rounds_total{outcome="ok"} 6.0' in text
    assert "locust_llm_canary_prefill_share 0.4\n" in text
    assert "prefill_share_low" not in text  # three rounds have no interval


@pytest.mark.parametrize(
    ("kinds", "took_s", "ends_s", "rounds", "status"),
    [
        (("calm", "down"), 1.0, 1e9, 6, ExitStatus.FAILED_REQUESTS),
        (("down",), 1.0, 1e9, 6, ExitStatus.INCOMPLETE),
        (("calm",), 1.0, 130.0, 2, ExitStatus.OK),  # Ctrl-C
        # slow rounds skip others: none comes beside another
        (("calm",), 50.0, 1e9, 2, ExitStatus.OK),
    ],
)
def test_how_it_goes_on_and_ends(
    kinds: tuple[str, ...], took_s: float, ends_s: float, rounds: int, status: int, tmp_path: Path
) -> None:
    session, said = of(tmp_path / "gone" if "down" in kinds else tmp_path)
    clock = Clock(ends_s)
    assert session.run(clock.rounds(took_s, *kinds), clock.wait, clock.now) == status
    assert len(session.rounds) == rounds
    if "down" in kinds:
        assert any("no answer: refused: connection refused" in line for line in said)
        assert any("could not be written" in line for line in said)
        registry = CollectorRegistry()
        registry.register(session)
        assert "prefill_share" not in generate_latest(registry).decode()  # the last round failed


def stalled(others: bool | None, lost_s: float = 0.5) -> CanaryRound:
    return CanaryRound(
        at=100.0, ttft_s=0.05, gaps=63, watched_s=0.5 + lost_s, quiet_s=0.008,
        stalls=int(lost_s > 0), lost_s=lost_s,
        input_tokens=60, others=others,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rounds", "text"),
    [
        # all alone by the counters: half of the time is noise
        ([stalled(False)] * 3, "nobody else by the server's counters: noise of the server or its "
            "machine held the stream up "
         "50% of the time"),
        ([stalled(False, 0.0)] * 3, "nobody else by the server's counters, no stall in 1.5 s "
            "watched"),
        # 0.5 + 0.5 of 1.0 + 1.0 + 0.5 s, and nothing in the round that was alone
        ([stalled(True), stalled(True), stalled(False, 0.0)],
            "others: prefill 40% of the time, 0.8 stalls/s, 4,000 prompt "
         "tokens/s (noise, in 1 round without others: 0% of the time, 0 stalls in 500 ms)"),
        # 0.5 of 1.0 + 4 x 1.0 s beside others; the stalls of the others' absence are none of theirs
        ([stalled(True), *[stalled(False)] * 4], "others: prefill 10% of the time, 0.2 stalls/s, "
            "1,000 prompt tokens/s (noise, in 4 rounds without others: 50% of the time, 1 stalls/s)"),
        # 900 in 9 s: not 1e+02
        ([replace(stalled(True), watched_s=4.5, stalls=450)] * 2,
            "others: prefill 11% of the time, 100 stalls/s, "),
        # too short for a rate: 2 x 5 ms
        ([replace(stalled(True, 0.002), watched_s=0.005)] * 2,
            "others: prefill 40% of the time, 2 stalls in 10 ms, "),
        # no counters: four calm rounds show that the server alone is calm
        ([stalled(None), *[stalled(None, 0.0)] * 4], "others: prefill 17% of the time"),
        ([stalled(None), *[stalled(None, 0.0)] * 3], "stalls: 20% of the time"),
    ],
)  # fmt: skip
def test_who_held_the_stream_up(rounds: list[CanaryRound], text: str, tmp_path: Path) -> None:
    session, said = of(tmp_path)
    for one in rounds:
        session.add(one)
    assert text in re.sub(r" \([\d,]+%? to [\d,]+%?\)", "", said[-1])  # without the intervals
    assert "prompts of 60 tokens by the server's count" in session.summary()


def test_a_stall_far_longer_than_all_others_may_be_no_prefill(tmp_path: Path) -> None:
    """The others lasted up to 0.3 s, and 20 times that is 6 s."""
    short = replace(stalled(None, 0.3), longest_s=0.3)
    calm = [stalled(None, 0.0)] * 4
    for lost_s, named in ((5.9, False), (6.0, True)):
        session, _ = of(tmp_path)
        for one in (*calm, short, replace(stalled(None, lost_s), longest_s=lost_s)):
            session.add(one)
        text = "one stall of 6 s, 20 times as long as all others, may be a server that stood still"
        assert (text in session.summary()) is named


def test_the_result_fits_its_schema(tmp_path: Path) -> None:
    """Six rounds, of which two fail; each of the others loses 0.5 of 1 s."""
    session, _ = of(tmp_path)
    clock = Clock()
    session.run(clock.rounds(1.0, "stalls", "stalls", "down"), clock.wait, clock.now)
    value = json.loads(msgspec.json.encode(session.result))
    jsonschema.validate(value, json.loads(SCHEMA.read_text("utf-8")))
    assert (value["rounds"], value["failed"]) == (6, 2)
    assert value["load"]["rounds"] == 4
    assert value["load"]["lost"] == pytest.approx(0.5)
    assert value["file"] == str(tmp_path / FILE)


def test_a_round_without_a_usual_gap_names_the_reason(tmp_path: Path) -> None:
    session, said = of(tmp_path)
    session.add(CanaryRound(at=1.0, ttft_s=0.05, gaps=5, watched_s=0.1))
    session.add(CanaryRound(at=2.0, ttft_s=0.05, gaps=63, watched_s=0.1))
    assert said[0].endswith("5 gaps: too few for a result\n")
    assert said[1].endswith("63 gaps: most chunks came together: no usual gap\n")


@pytest.mark.parametrize(
    ("before", "after", "others"),
    [
        ({"ttft_count": 5}, {"ttft_count": 6}, False),
        ({"ttft_count": 5}, {"ttft_count": 7}, True),
        ({"ttft_count": 5, "running": 1}, {"ttft_count": 6}, True),
        ({"ttft_count": 5, "waiting": 1}, {"ttft_count": 6}, True),
        ({"cache_queries": 100}, {"cache_queries": 160}, False),  # its own 60
        ({"cache_queries": 100}, {"cache_queries": 161}, True),
        ({"running": 0}, {"running": 0}, None),
    ],
)
def test_others_by_the_counters(
    before: dict[str, float], after: dict[str, float], others: bool | None
) -> None:
    samples = [EngineSample(at=0.0, engine="vLLM", **fields) for fields in (before, after)]
    assert found_other_requests(samples[0], samples[1], 60) is others
    assert found_other_requests(None, samples[1], 60) is None


def test_its_stream_beside_the_counters() -> None:
    """The server counts each prompt, and those of somebody else; a server without the page is asked
    for it once."""
    extra, counted = 0, 0

    def answer(one: Asked) -> tuple[int, Any]:
        nonlocal counted
        counted += 1 + extra
        server.pages["/metrics"] = 200, f"vllm:time_to_first_token_seconds_count {counted}\n"
        chunk = {"choices": [{"index": 0, "delta": {"content": "a "}}]}
        end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        usage = {"choices": [], "usage": {"prompt_tokens": 60, "completion_tokens": 32}}
        return 200, [*[chunk] * 32, end, usage]

    with tiny_server() as server:
        server.chat = answer
        server.pages["/metrics"] = 200, "vllm:time_to_first_token_seconds_count 0\n"
        canary = Canary(Settings(host=server.url), {}, "m", 32)
        alone = canary.ask()
        extra = 1
        beside = canary.ask()
        canary.close()
        assert (alone.others, alone.input_tokens, beside.others) == (False, 60, True)
    with tiny_server() as server:
        canary = Canary(Settings(host=server.url), {}, "m", 32)
        server.answer = lambda one: (404, "") if "metrics" in one.path else answer(one)  # type: ignore[method-assign]
        assert [canary.ask().others for _ in range(3)] == [None] * 3
        canary.close()
        assert [path for path in server.paths() if "metrics" in path] == [
            "/metrics",
            "/prometheus/metrics",
        ]


def test_its_stream() -> None:
    """Short prompts, no two alike; ``ignore_eos`` where answers end too soon, and never again where
    that is refused."""
    asked: list[dict[str, Any]] = []

    def answer(one: Asked) -> tuple[int, Any]:
        asked.append(one.body)
        if "ignore_eos" in one.body and refuses:
            return 400, {"error": {"message": "unknown field"}}
        count = one.body["max_tokens"] if "ignore_eos" in one.body else 7
        chunk = {"choices": [{"index": 0, "delta": {"content": "a "}}]}
        end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        usage = {"choices": [], "usage": {"prompt_tokens": 48, "completion_tokens": count}}
        return 200, [*[chunk] * count, end, usage]

    for refuses, counts in ((False, [7, 32, 32]), (True, [7, 7, 7])):
        asked.clear()
        with tiny_server() as server:
            server.chat = answer
            canary = Canary(Settings(host=server.url), {}, "m", 32)
            found = [canary.ask() for _ in range(3)]
            canary.close()
        assert [one.gaps + 1 for one in found] == counts
        assert [one.error for one in found] == [""] * 3
        texts = {body["messages"][0]["content"][:12] for body in asked}
        assert len(texts) == len(asked) == (4 if refuses else 3)
        assert max(len(body["messages"][0]["content"].split()) for body in asked) < 60
    down = Canary(
        Settings(host=server.url), {"Authorization": "Bearer sk-0123456789abcdef"}, "m", 32
    ).ask()
    assert down.error.startswith("refused")


def test_what_it_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with tiny_server() as server:
        for words, why in (
            (["--host", "127.0.0.1:1"], "cannot reach"),
            (["127.0.0.1:1"], "cannot reach"),
            ([], "the server's address is missing, such as localhost:8000"),
            (["127.0.0.1:1", "--host", "127.0.0.1:2"], "two addresses are given: use one"),
            (["--host", "a:1,b:2"], "one address at a time"),
            (["--host", server.url, "--token-prize", "3"], "--token-price"),
            (["--host", server.url, "--token-price", "0"], "above 0"),
            (["--host", server.url, "--probe", str(tmp_path)], "not a finished probe"),
            (
                ["--host", server.url, "--report-dir", str(tmp_path), "--metrics-port", "x"],
                "--metrics-port takes",
            ),
        ):
            assert canary_command(words) == ExitStatus.REFUSED
            assert why in capsys.readouterr().err
    assert (
        parse_canary_duration("20s"),
        parse_canary_duration("5m"),
        parse_canary_duration("2h"),
        parse_canary_duration("7"),
    ) == (20, 300, 7200, 7)
