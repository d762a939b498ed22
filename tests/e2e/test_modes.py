"""Load modes as whole runs: what was due, what was sent, and what the server saw of it."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from support.command_line import parse
from support.runs import Server, records, run
from support.tiny_server import tiny_server

from locust_llm.controller.schedule import schedule_phase
from locust_llm.demo_command import start_simulator
from locust_llm.exit_status import ExitStatus
from locust_llm.locust_adapter.command_line_parser import check_options
from locust_llm.records.record import Record
from locust_llm.settings.run_options import Settings
from locust_llm.settings.run_refusal import RunRefused
from locust_llm.slo.load_generator_health import OK

TTFT_MS: Final = 100
SHORT: Final = ("--synthetic-input-tokens-mean", "60", "--output-tokens-mean", "6", "--no-probe")
TURNS: Final = ("--session-turns-mean", "3", "--session-turn-delay-mean", "20")
CONSTANT: Final = ("--arrival-pattern", "constant")
TWO: Final = ("--processes", "2")
BOTH: Final = [
    (),
    # each must be there when the first are due
    pytest.param(TWO, marks=pytest.mark.serial, id="two processes"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with start_simulator("--truth", "full", "--ttft-ms", str(TTFT_MS), "--itl-ms", "5") as url:
        yield Server(url)


@pytest.fixture(autouse=True)
def _fresh(request: pytest.FixtureRequest) -> None:
    if "server" in request.fixturenames:
        request.getfixturevalue("server").reset()


def offer(folder: Path) -> dict[str, Any]:
    """What the schedule had to offer."""
    return json.loads((folder / "run.json").read_text())["run"]["offer"]


def ran(server: Server, folder: Path, *words: str) -> list[Record]:
    """The records of a run that went well: one for each request that the server saw."""
    done = run(server, folder, *words)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    got = records(folder)
    assert sorted(record.id for record in got) == sorted(row["id"] for row in server.rows())
    return got


def due_s(got: Iterable[Record]) -> list[float]:
    """When they were due, in order, in seconds after the first."""
    at = sorted(record.due_at + record.clock_offset_s for record in got)
    return [one - at[0] for one in at]


def exactly(seconds: Iterable[float]) -> Any:
    return pytest.approx(list(seconds), abs=2e-6)  # Unix time as a float is that coarse, twice


def most_at_once(got: Iterable[Record]) -> int:
    """How many of these requests were under way at a time; of one process, whose clock they
    share."""
    changes = [(record.sent_at, 1) for record in got] + [(record.closed_at, -1) for record in got]
    now = most = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def trace(path: Path, count: int, gap_ms: int, turns: int = 1) -> Path:
    """Rows of Mooncake's format, the n-th asking for n + 1 tokens; ``turns`` of them in a row are
    one session."""
    rows = (
        {
            "timestamp": 5000 + n * gap_ms,
            "input_length": 60,
            "output_length": n + 1,
            "session_id": f"s{n // turns}",
        }
        for n in range(count)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# -- the limit, in every mode, with 24 requests that come faster than it lets through --------------

MODES: Final = {
    "rate": ("-u", "8", "--request-rate", "40", *CONSTANT, "--request-count", "24"),
    "user-centric": ("-u", "8", "--user-centric-rate", "40", "--request-count", "24"),
    "fixed schedule": ("-u", "24", "--fixed-schedule", "--input-file", "{trace}"),
    "burst": ("-u", "8", "--request-count", "24"),
}
IN_SHORT: Final = {("fixed schedule", 3)}


@pytest.mark.parametrize(
    ("mode", "turns", "processes"),
    [
        pytest.param(
            mode, turns, processes, id=f"{mode}, {turns} turns, {2 if processes else 1} processes",
            marks=() if (mode, turns) in IN_SHORT and not processes else pytest.mark.full,
        )
        for mode in MODES for turns in (1, 3) for processes in ((), TWO)
    ],
)  # fmt: skip
def test_the_limit_holds_at_the_server_and_the_schedule_is_exact(
    server: Server, tmp_path: Path, mode: str, turns: int, processes: tuple[str, ...]
) -> None:
    path = trace(tmp_path / "trace.jsonl", 24, 25, turns)
    words = [word.format(trace=path) for word in MODES[mode]]
    several = TURNS if turns > 1 else ()
    got = ran(
        server, tmp_path / "r", *words, *several, *processes, "--prefill-concurrency", "2", *SHORT
    )
    assert Counter(record.outcome for record in got) == {"ok": 24}
    assert server.truth()["max_prefilling"] == 2
    # the whole one, whatever the part of the process
    assert {record.limit for record in got} == {2}
    assert {record.turn for record in got} == set(range(turns))
    if mode == "rate":
        assert due_s(got) == exactly(n / 40 for n in range(24))
    if mode == "fixed schedule":
        by_row = sorted(got, key=lambda record: record.asked_output_tokens or 0)
        # each row once
        assert [record.asked_output_tokens for record in by_row] == list(range(1, 25))
        zero = by_row[0].due_at + by_row[0].clock_offset_s
        assert [record.due_at + record.clock_offset_s - zero for record in by_row] == exactly(
            n / 40 for n in range(24)
        )
        assert "Schedule Delay (ms)" in (tmp_path / "r" / "summary.md").read_text()
    if mode == "user-centric":
        assert due_s(got) == exactly(n / 40 for n in range(24))
        of_user = defaultdict(list)
        for record in got:
            of_user[record.worker, record.user].append(record)
        assert len(of_user) == 8
        for its in of_user.values():
            assert due_s(its) == exactly((0.0, 0.2, 0.4))  # users / rate


@pytest.mark.slow
@pytest.mark.serial
def test_two_processes_share_a_schedule_and_as_many_users_as_it_takes(
    server: Server, tmp_path: Path
) -> None:
    """The tests below have each of these alone."""
    words = ("--request-rate", "60", "--random-seed", "7", "--request-count", "41")
    got = ran(server, tmp_path / "r", *words, *TWO, *SHORT)
    expected = [
        due.at_s
        for due in schedule_phase(
            Settings(request_rate=60, random_seed=7, request_count=41), "profiling"
        )
        or ()
    ]
    assert due_s(got) == exactly(at_s - expected[0] for at_s in expected)
    assert offer(tmp_path / "r")["due"] == 41
    assert len({record.worker for record in got}) == 2
    users = len({(record.worker, record.user) for record in got})
    # 60/s x 0.125 s keep seven busy; a machine that stalls for a second finds all arrivals waiting
    # at once
    assert 5 <= users <= offer(tmp_path / "r")["most_users"] < 100
    assert "NOT DELIVERED" not in (tmp_path / "r" / "summary.md").read_text()


@pytest.mark.full
@pytest.mark.parametrize("processes", BOTH)
def test_poisson_arrivals_are_those_of_the_seed_each_sent_once(
    server: Server, tmp_path: Path, processes: tuple[str, ...]
) -> None:
    got = ran(
        server, tmp_path / "r", "-u", "20", "--request-rate", "60", "--random-seed", "7",
        "--request-count", "41",
        *processes, *SHORT,
    )  # fmt: skip
    asked = Settings(request_rate=60, random_seed=7, request_count=41)
    expected = [due.at_s for due in schedule_phase(asked, "profiling") or ()]
    assert due_s(got) == exactly(at_s - expected[0] for at_s in expected)
    assert len({record.worker for record in got}) == (2 if processes else 1)
    assert offer(tmp_path / "r")["due"] == 41


@pytest.mark.full
def test_gamma_arrivals_under_a_ramp_are_those_of_the_seed(server: Server, tmp_path: Path) -> None:
    words = (
        "--arrival-smoothness",
        "0.5",
        "--request-rate-ramp-duration",
        "1",
        "--request-count",
        "41",
    )
    got = ran(
        server,
        tmp_path / "r",
        "-u",
        "20",
        "--request-rate",
        "60",
        "--random-seed",
        "7",
        *words,
        *SHORT,
    )
    asked = Settings(
        request_rate=60, random_seed=7, request_count=41, arrival_pattern="gamma",
        arrival_smoothness=0.5,
        request_rate_ramp_duration=1,
    )  # fmt: skip
    expected = [due.at_s for due in schedule_phase(asked, "profiling") or ()]
    assert due_s(got) == exactly(at_s - expected[0] for at_s in expected)


@pytest.mark.full
def test_a_replay_at_twice_the_speed_between_two_times_of_the_trace(
    server: Server, tmp_path: Path
) -> None:
    path = trace(tmp_path / "trace.jsonl", 24, 50)
    got = ran(
        server, tmp_path / "r", "--fixed-schedule", "--input-file", str(path), "--replay-speedup",
        "2",
        "--fixed-schedule-start-offset", "5200", "--fixed-schedule-end-offset", "5800", *SHORT,
    )  # fmt: skip
    # 5,200 to 5,800 ms
    assert sorted(record.asked_output_tokens or 0 for record in got) == list(range(5, 18))
    assert due_s(got) == exactly(n * 0.025 for n in range(13))


@pytest.mark.full
def test_the_count_bounds_a_replay_in_requests(server: Server, tmp_path: Path) -> None:
    path = trace(tmp_path / "trace.jsonl", 24, 25, turns=3)
    words = ("-u", "8", "--fixed-schedule", "--input-file", str(path), "--request-count", "10")
    assert len(ran(server, tmp_path / "r", *words, *SHORT)) == 10


@pytest.mark.full
def test_a_replay_is_whole_after_a_warmup(server: Server, tmp_path: Path) -> None:
    path = trace(tmp_path / "trace.jsonl", 24, 25, turns=3)
    words = (
        "-u",
        "8",
        "--fixed-schedule",
        "--input-file",
        str(path),
        "--warmup-request-count",
        "4",
    )
    warm, main = phases(ran(server, tmp_path / "r", *words, *SHORT))
    assert len(warm) == 4
    assert sorted(record.asked_output_tokens or 0 for record in main) == list(range(1, 25))


# -- datasets and sessions -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("processes", [pytest.param((), marks=pytest.mark.full), TWO])
def test_a_dataset_is_sent_once_and_then_the_run_ends(
    server: Server, tmp_path: Path, processes: tuple[str, ...]
) -> None:
    rows = ({"prompt": f"Question number {n}", "output_tokens": n + 1} for n in range(30))
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    got = ran(server, tmp_path / "r", "-u", "20", "--input-file", str(path), *processes, *SHORT)
    assert sorted(record.asked_output_tokens or 0 for record in got) == list(range(1, 31))
    assert [record.output_tokens for record in got] == [
        record.asked_output_tokens for record in got
    ]
    assert len({record.session for record in got}) == 30


@pytest.mark.full
def test_a_dataset_that_ends_has_delivered_all_that_there_was(
    server: Server, tmp_path: Path
) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text('{"prompt": "Why?", "output_tokens": 2}\n' * 20)
    got = ran(
        server,
        tmp_path / "r",
        "-u",
        "20",
        "--input-file",
        str(path),
        "--request-rate",
        "40",
        *CONSTANT,
        *SHORT,
    )
    assert due_s(got) == exactly(n / 40 for n in range(20))
    assert offer(tmp_path / "r")["due"] == 20
    assert "NOT DELIVERED" not in (tmp_path / "r" / "summary.md").read_text()


@pytest.mark.full  # the next test has sessions in one process
@pytest.mark.parametrize("processes", [(), TWO])
def test_exactly_so_many_sessions_begin_and_each_is_whole(
    server: Server, tmp_path: Path, processes: tuple[str, ...]
) -> None:
    got = ran(server, tmp_path / "r", "-u", "6", "--num-sessions", "9", *TURNS, *processes, *SHORT)
    of_session = defaultdict(list)
    for record in sorted(got, key=lambda record: record.turn):
        of_session[record.session].append(record)
    assert len(of_session) == 9
    tokens = {row["id"]: row["prompt_tokens"] for row in server.rows()}
    for turns in of_session.values():
        assert [record.turn for record in turns] == [0, 1, 2]
        sent = [tokens[record.id] for record in turns]
        # each holds the 6 tokens of the answers before it
        assert sent[0] < sent[1] - 6 < sent[2] - 12


@pytest.mark.slow
def test_sessions_are_whole_and_a_later_turn_holds_what_was_really_answered(tmp_path: Path) -> None:
    with tiny_server() as tiny:
        done = run(
            # all at once: else the first of its three users may take all sessions
            Server(tiny.url), tmp_path / "r", "-u", "3", "-r", "3", "--num-sessions", "5", *TURNS,
            "--session-header", "X-Session",
            "--model-mix", "tiny=1,other=1", "--random-seed", "3", *SHORT, "--tenant-mix",
            "gold=1,free=2",
            "--tenant-header", "gold:X-Key=secret-1", "--tenant-priority", "gold=0,free=9",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        asked, models, tenants = defaultdict(list), defaultdict(set), defaultdict(set)
        for one in tiny.asked:
            if one.path == "/v1/chat/completions":
                asked[one.headers["x-session"]].append(one.body["messages"])
                models[one.headers["x-session"]].add(one.body["model"])
                tenant = one.headers["x-gateway-inference-fairness-id"]
                tenants[one.headers["x-session"]].add(tenant)
                carried = one.headers.get("x-key"), one.body["priority"]
                assert carried == {"gold": ("secret-1", 0), "free": (None, 9)}[tenant]
    assert len(asked) == 5
    for first, second, third in asked.values():
        assert [message["role"] for message in third] == [
            "user",
            "assistant",
            "user",
            "assistant",
            "user",
        ]
        assert (second[:-1], third[:-1]) == (
            [*first, {"role": "assistant", "content": "yes"}],
            [*second, {"role": "assistant", "content": "yes"}],
        )
    got = records(tmp_path / "r")
    assert Counter(record.session for record in got) == dict.fromkeys(asked, 3)
    assert {record.session: {record.model} for record in got} == models  # each keeps its own
    assert {record.session: {record.tenant} for record in got} == tenants
    assert {*Counter(record.tenant for record in got)} == {"gold", "free"}
    assert not [file for file in (tmp_path / "r").iterdir() if b"secret-1" in file.read_bytes()]
    assert "Service by tenant" in (tmp_path / "r" / "report.html").read_text()
    assert Counter(record.model for record in got) == {"tiny": 6, "other": 9}
    mix = (
        r"model mix +\| tiny 40\.0% \(asked for 50\.0%\), other 60\.0% \(asked for 50\.0%\) of "
        r"the requests"
    )
    assert re.search(mix, (tmp_path / "r" / "summary.md").read_text())
    assert Counter(record.turn for record in got) == {0: 5, 1: 5, 2: 5}


# -- phases ----------------------------------------------------------------------------------------


def phases(got: Iterable[Record]) -> tuple[list[Record], list[Record]]:
    """(warmup, profiling)."""
    return [one for one in got if one.phase == "warmup"], [
        one for one in got if one.phase == "profiling"
    ]


@pytest.mark.slow
def test_a_warmup_by_count_with_its_own_users_and_rate(server: Server, tmp_path: Path) -> None:
    warm, main = phases(
        ran(
            server, tmp_path / "r", "-u", "6", "--request-count", "18", "--warmup-request-count",
            "12",
            "--warmup-concurrency", "2", "--warmup-request-rate", "40", *CONSTANT, *SHORT,
        )
    )  # fmt: skip
    assert (len(warm), len(main)) == (12, 18)
    assert due_s(warm) == exactly(n / 40 for n in range(12))
    assert (most_at_once(warm), most_at_once(main)) == (2, 6)  # the rate would need five
    assert max(record.closed_at for record in warm) <= min(record.asked_at for record in main)
    assert re.search(r"\|\s*18 \|", (tmp_path / "r" / "summary.md").read_text())


@pytest.mark.full
def test_a_closed_warmup_has_its_own_users_from_the_first_request_on(
    server: Server, tmp_path: Path
) -> None:
    words = (
        "-u",
        "6",
        "--request-count",
        "18",
        "--warmup-request-count",
        "12",
        "--warmup-concurrency",
        "2",
    )
    warm, main = phases(ran(server, tmp_path / "r", *words, *SHORT))
    assert (most_at_once(warm), most_at_once(main)) == (2, 6)


@pytest.mark.full
def test_the_run_time_bounds_what_comes_after_a_warmup_by_time(
    server: Server, tmp_path: Path
) -> None:
    warm, main = phases(
        ran(
            server, tmp_path / "r", "-u", "20", "--request-rate", "40", *CONSTANT,
            "--warmup-duration", "0.5", "-t", "1s",
            *SHORT,
        )
    )  # fmt: skip
    assert due_s(warm) == exactly(n / 40 for n in range(20))
    # what was due before the second was over; the last ones may have been too late on a busy
    # machine
    # the second schedule begins where the first one ends, as exactly as two looks at the clock
    assert due_s([*warm, *main]) == pytest.approx(
        [n / 40 for n in range(20 + len(main))], abs=0.005
    )
    assert 24 <= len(main) <= 40 == offer(tmp_path / "r")["due"]


WARMED: Final = ("-u", "4", "--warmup-duration", "1.5", "-t", "2s", "--output-tokens-mean", "60")


def unix(record: Record, at: float) -> float:
    return at + record.clock_offset_s


@pytest.mark.parametrize("processes", BOTH)
@pytest.mark.parametrize(
    "words", [("--prefill-concurrency", "1"), TURNS], ids=["at a gate", "sessions"]
)
def test_users_go_on_from_the_warmup_into_profiling(
    server: Server, tmp_path: Path, words: tuple[str, ...], processes: tuple[str, ...]
) -> None:
    """Answers of 0.4 s: some are on their way when the warmup is over, and none of their users
    waits for the others."""
    got = ran(server, tmp_path / "r", *WARMED, "--no-probe", *words, *processes)
    facts = json.loads((tmp_path / "r" / "run.json").read_text())["run"]
    profiling_at = facts["profiling_at"]
    warm, main = phases(got)
    in_flight = [record for record in warm if unix(record, record.closed_at) > profiling_at]
    assert 1 <= len(in_flight) <= 4
    assert max(unix(record, record.asked_at) for record in warm) < profiling_at + 0.1
    assert min(unix(record, record.asked_at) for record in main) > profiling_at - 0.1
    last, first = {}, {}
    for record in sorted(got, key=lambda record: unix(record, record.asked_at)):
        user = record.worker, record.user
        if record.phase == "warmup":
            last[user] = record
        else:
            first.setdefault(user, record)
    assert len(first) == len(last) == 4
    for user, record in first.items():
        assert record.asked_at - last[user].closed_at < 0.2
    note = "in flight when profiling began"
    assert f"{len(in_flight)} request" in (tmp_path / "r" / "summary.md").read_text()
    assert note in (tmp_path / "r" / "summary.md").read_text()
    assert [start["phase"] for start in facts["starts"]] == ["warmup"]
    if words is TURNS:
        both = {record.session for record in warm} & {record.session for record in main}
        assert both


# -- what ends a request early ---------------------------------------------------------------------


@pytest.mark.slow
def test_cancelled_requests_keep_what_came_and_give_their_slots_back(
    server: Server, tmp_path: Path
) -> None:
    got = ran(
        server, tmp_path / "r", "-u", "4", "--request-count", "8", "--prefill-concurrency", "1",
        "--no-probe",
        "--request-cancellation-rate", "100", "--request-cancellation-delay",
        f"{6 * TTFT_MS / 1e3}",
        "--output-tokens-mean", "1000",
    )  # fmt: skip
    assert Counter(record.outcome for record in got) == {"cancelled": 8}
    rows = {row["id"]: row for row in server.rows()}
    for record in got:
        row = rows[record.id]
        assert row["aborted"]
        assert record.ttft_s is not None
        assert (
            1 <= (record.output_tokens or 0) == len(record.chunk_us) <= row["output_tokens"] < 1000
        )
        assert record.freed_at is not None
        assert record.freed_at < record.closed_at  # at the first token, not at the cancel
    assert server.truth()["max_prefilling"] == 1


@pytest.mark.full
def test_requests_cancelled_in_their_prefill_give_their_slots_back(
    server: Server, tmp_path: Path
) -> None:
    got = ran(
        server, tmp_path / "r", "-u", "4", "--request-count", "8", "--prefill-concurrency", "1",
        "--request-cancellation-rate", "100", "--request-cancellation-delay", "0.01", *SHORT,
    )  # fmt: skip
    assert Counter((record.outcome, record.ttft_s) for record in got) == {("cancelled", None): 8}
    assert all(row["aborted"] for row in server.rows())


@pytest.mark.full  # test_faults.py has each time-out, and test_run.py a run that fails
@pytest.mark.parametrize(
    ("flag", "outcome", "tokens"),
    [
        ("--first-token-timeout", "first_token_timeout", False),
        ("--request-timeout", "timeout", False),
    ],
)
def test_a_time_out_is_a_failure_of_its_own_kind(
    server: Server, tmp_path: Path, flag: str, outcome: str, tokens: bool
) -> None:
    words = ("-u", "3", "--request-count", "6", "--prefill-concurrency", "1", flag, "0.03")
    done = run(server, tmp_path / "r", *words, *SHORT)
    assert done.returncode == 1
    assert Counter(record.outcome for record in records(tmp_path / "r")) == {outcome: 6}
    assert outcome in done.stdout
    assert all(row["aborted"] for row in server.rows())


@pytest.mark.full
def test_a_gap_time_out_keeps_what_came(tmp_path: Path) -> None:
    with start_simulator("--truth", "full", "--ttft-ms", "10", "--itl-ms", "500") as url:
        done = run(
            Server(url),
            tmp_path / "r",
            "-u",
            "2",
            "--request-count",
            "4",
            "--gap-timeout",
            "0.1",
            *SHORT,
        )
    assert done.returncode == 1
    got = records(tmp_path / "r")
    assert [(record.outcome, len(record.chunk_us)) for record in got] == [("gap_timeout", 1)] * 4


# -- users and what could not be delivered ---------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("processes", BOTH)
def test_a_rate_without_users_adds_as_many_as_it_needs(
    server: Server, tmp_path: Path, processes: tuple[str, ...]
) -> None:
    words = ("--request-rate", "40", *CONSTANT, "--request-count", "40", *processes)
    got = ran(server, tmp_path / "r", *words, *SHORT)
    assert due_s(got) == exactly(n / 40 for n in range(40))
    users = len({(record.worker, record.user) for record in got})
    # 40/s x 0.125 s keep five busy; a machine that stalls for a second finds 40 arrivals waiting at
    # once
    assert 5 <= users <= offer(tmp_path / "r")["most_users"] < 100
    assert "NOT DELIVERED" not in (tmp_path / "r" / "summary.md").read_text()


@pytest.mark.full
def test_a_trace_without_users_is_replayed_whole_by_two_processes(
    server: Server, tmp_path: Path
) -> None:
    path = trace(tmp_path / "trace.jsonl", 24, 25, turns=3)
    got = ran(server, tmp_path / "r", "--fixed-schedule", "--input-file", str(path), *TWO, *SHORT)
    assert sorted(record.asked_output_tokens or 0 for record in got) == list(range(1, 25))


@pytest.mark.full
def test_users_that_two_processes_cannot_share_evenly_have_all_their_turns(
    server: Server, tmp_path: Path
) -> None:
    words = ("-u", "5", "--user-centric-rate", "20", "--request-count", "40", *TWO)
    got = ran(server, tmp_path / "r", *words, *SHORT)
    assert due_s(got) == exactly(n / 20 for n in range(40))
    assert sorted(Counter((record.worker, record.user) for record in got).values()) == [8] * 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "where"),
    [
        (("--max-users", "2"), "2 users (--max-users was reached) sent "),
        pytest.param(("-u", "2"), "2 users sent ", marks=pytest.mark.full),
        pytest.param(
            ("-u", "30", "--prefill-concurrency", "1"),
            "passed the prefill limit of 1",
            marks=pytest.mark.full,
        ),
    ],
)
def test_what_was_not_delivered_is_said_with_where_it_waited(
    server: Server, tmp_path: Path, words: tuple[str, ...], where: str
) -> None:
    done = run(
        server, tmp_path / "r", "--request-rate", "60", *CONSTANT, "-t", "1s", *words, *SHORT
    )
    assert done.returncode == 0, done.stderr
    got = records(tmp_path / "r")
    assert offer(tmp_path / "r")["due"] == 60
    assert len(got) < 60 * 0.98
    said = (tmp_path / "r" / "summary.md").read_text()
    assert f"NOT DELIVERED: {len(got) / 60:.1%} of the scheduled requests were sent. " in said
    client = json.loads((tmp_path / "r" / "run.json").read_text())["client"]["level"]
    # on a busy machine it may be that
    wheres = (where,) if client == OK else (where, "Cause: the load generator")
    assert any(some in said for some in wheres)
    if "--max-users" in words:
        assert (
            "all 2 users are busy and arrivals wait. If the server keeps up with the load, raise "
            "--max-users" in done.stderr
        )
        assert {record.user for record in got} == {1, 2}


# -- what cannot be --------------------------------------------------------------------------------

FILES: Final = {
    "empty.jsonl": "",
    "unsorted.jsonl": '{"timestamp": 9, "input_length": 5}\n{"timestamp": 3, "input_length": 5}\n',
    "timeless.jsonl": '{"timestamp": 9, "input_length": 5}\n{"input_length": 5}\n',
    "broken.jsonl": '{"text": "a"}\n{"text": "b"}\n{"text": \n',
    "odd.jsonl": '{"colour": "red"}\n',
    "number.jsonl": '{"text": "a"}\n{"text": 5}\n',
    "log.csv": "when,in\n2024-01-01T00:00:00,5\n2024-01-01T00:00:01,many\n",
    "rates.json": "[[0, 5], [10, -1]]",
    "backwards.json": "[[5, 5], [1, 5]]",
}
COLUMNS: Final = "timestamp=when,input_tokens=in"
REFUSED: Final = (
    ("--request-rate 5 --user-centric-rate 5 -u 2",
        "--user-centric-rate and --request-rate exclude each other"),
    ("--request-rate 5 --request-rate-series rates.json",
        "--request-rate-series and --request-rate exclude"),
    ("--fixed-schedule --input-file unsorted.jsonl --request-rate 2",
        "--fixed-schedule and --request-rate exclude"),
    ("--user-centric-rate 5", "--user-centric-rate needs the number of users (-u)"),
    ("--fixed-schedule", "--fixed-schedule needs a trace (--input-file)"),
    (
        "--fixed-schedule --input-file timeless.jsonl --dataset-sampling-strategy shuffle",
        "--fixed-schedule follows the timestamps of the trace",
    ),
    (
        "--fixed-schedule --input-file odd.jsonl --fixed-schedule-start-offset 5 "
            "--fixed-schedule-end-offset 5",
        "--fixed-schedule-end-offset 5 must be above --fixed-schedule-start-offset 5",
    ),
    ("--request-rate 0", "--request-rate must be above 0, got 0"),
    ("--request-rate -1", "--request-rate must be above 0, got -1"),
    ("--user-centric-rate 0 -u 2", "--user-centric-rate must be above 0, got 0"),
    ("--replay-speedup 0", "--replay-speedup must be above 0, got 0"),
    ("--request-rate 5 --arrival-pattern even",
        "--arrival-pattern must be one of constant, poisson, gamma, got 'even'"),
    (
        "--request-rate 5 --arrival-pattern poisson --arrival-smoothness 2",
        "--arrival-smoothness needs --arrival-pattern gamma, got poisson",
    ),
    ("--request-rate-ramp-duration 5", "--request-rate-ramp-duration has nothing to ramp"),
    ("--request-cancellation-rate 101", "at most 100, got 101"),
    ("--request-cancellation-delay 1",
        "--request-cancellation-delay needs --request-cancellation-rate"),
    ("--num-prefix-prompts 3", "give both --num-prefix-prompts and --prefix-prompt-length"),
    ("--warmup-concurrency 2 -u 2", "--warmup-concurrency needs a warmup"),
    ("--warmup-request-rate 2", "--warmup-request-rate needs a warmup"),
    ("--warmup-request-count 2 --warmup-concurrency 2 --request-rate 5",
        "--warmup-concurrency needs the number of users"),
    ("--custom-dataset-type openai", "--custom-dataset-type needs --input-file"),
    ("--dataset-columns timestamp=a", "--dataset-columns needs --input-file"),
    ("--request-rate 5 --max-users 2 --prefill-concurrency 3",
        "--prefill-concurrency 3 is above the 2 users (--max-users)"),
    ("--request-rate-series rates.json", "rates.json: point 2: the rate must be from 0"),
    ("--request-rate-series backwards.json", "backwards.json: point 2: its time 1 s is before 5 s"),
    ("--request-rate-series none.json", "none.json: No such file or directory"),
    ("--seq-dist 5,5:60", "must sum to 100 (percent) or 1 (shares), these sum to 60"),
    ("--tokenizer none", "none"),
    ("--input-file none.jsonl", "none.jsonl: cannot be read: No such file or directory"),
    ("--input-file empty.jsonl", "empty.jsonl"),
    ("--input-file broken.jsonl", "broken.jsonl, line 3, column"),
    ("--input-file number.jsonl", "number.jsonl, line 2, column"),
    ("--input-file odd.jsonl", "odd.jsonl, line 1"),
    ("--input-file broken.jsonl --custom-dataset-type poem", "poem"),
    (f"--input-file log.csv --dataset-columns {COLUMNS}", "log.csv, line 3, column"),
    (f"--input-file log.csv --dataset-columns {COLUMNS},output_tokens=out", "log.csv, line 1"),
    ("--fixed-schedule --input-file unsorted.jsonl", "unsorted.jsonl, line 2"),
    ("--fixed-schedule --input-file timeless.jsonl", "timeless.jsonl, line 2: the time is missing"),
)  # fmt: skip


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        Path(name).write_text(content)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("words", "line"), REFUSED, ids=[words for words, _ in REFUSED])
def test_what_cannot_be_is_one_line_and_status_5(
    words: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # of the parser, or of what looks at its values
    with pytest.raises((SystemExit, RunRefused)) as ended:
        check_options(parse(*words.split()))
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", int(isinstance(ended.value, SystemExit)))
    assert line in (err or str(ended.value))


@pytest.mark.full  # test_refusals.py has the command, and the test above these lines
@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    "words",
    [
        "--request-rate 5 --user-centric-rate 5 -u 2",
        "--input-file broken.jsonl",
        "--fixed-schedule --input-file unsorted.jsonl",
    ],
)
def test_the_command_refuses_before_any_load(words: str, tmp_path: Path) -> None:
    with tiny_server() as tiny:
        done = run(Server(tiny.url), tmp_path / "r", *words.split(), *TWO)
        assert tiny.asked == []
    assert (done.returncode, done.stdout) == (ExitStatus.REFUSED, "")
    *before, last = done.stderr.splitlines()
    assert last.startswith("locust-llm: error: ")
    assert dict(REFUSED)[words] in last
    assert all("INFO" in other or "WARNING" in other for other in before)
    assert not (tmp_path / "r").exists()
