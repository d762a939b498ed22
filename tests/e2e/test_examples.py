"""The locustfiles that come with the library: each runs as it is, and does what its first line
says."""

import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
from support.runs import ROOT, Server, records, run

from locust_llm.demo_command import start_simulator
from locust_llm.records.record import Record
from locust_llm.workload.dataset_summary import check_dataset

EXAMPLES: Final = ROOT / "locustfiles"
FEW: Final = ("--output-tokens-mean", "8", "--no-probe")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with start_simulator(
        "--truth",
        "full",
        "--ttft-ms",
        "20",
        "--itl-ms",
        "2",
        "--served-model-name",
        "small",
        "large",
    ) as url:
        yield Server(url)


@pytest.fixture(autouse=True)
def _fresh(request: pytest.FixtureRequest) -> None:
    if "server" in request.fixturenames:
        request.getfixturevalue("server").reset()


def ran(server: Server, folder: Path, name: str, *words: str) -> list[Record]:
    """The records of a run of one of them: all went well, and the server saw each."""
    return ran_and_counted(server, folder, name, *words)[0]


def ran_and_counted(
    server: Server, folder: Path, name: str, *words: str
) -> tuple[list[Record], dict[str, int]]:
    """Also the requests by row of Locust's own table."""
    done = run(server, folder, *words, *FEW, "--verbose", locustfile=str(EXAMPLES / name))
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    got = records(folder)
    assert sorted(record.id for record in got) == sorted(row["id"] for row in server.rows())
    assert {record.outcome for record in got} == {"ok"}
    table = (done.stdout + done.stderr).partition("Response time percentiles")[0]
    return got, {
        row: int(count) for row, count in re.findall(r"(?m)^(?:POST|GET) +(\S+) +(\d+) ", table)
    }


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_each_says_what_it_is_and_how_to_run_it(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert re.fullmatch(r'"""[A-Z].*[.]', lines[0])
    assert any(line.startswith(f"locust -f locustfiles/{path.name} --host ") for line in lines[1:6])
    assert (
        f'"{path.name}"' in Path(__file__).read_text()
        or f"'{path.name}'" in Path(__file__).read_text()
    )


LOADED: Final = """
import sys
from locust.util.load_locustfile import load_locustfile

for path in sys.argv[1:]:
    users, _ = load_locustfile(path)
    print(path.rpartition("/")[2], *sorted(name for name, user in users.items() if user.tasks))
"""


@pytest.mark.slow
def test_locust_finds_users_with_tasks_in_each() -> None:
    paths = sorted(str(path) for path in EXAMPLES.glob("*.py"))
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *paths],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    found = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert found.keys() == {path.rpartition("/")[2] for path in paths}
    assert all(found.values())
    assert (found["conversations.py"], found["trace_replay.py"]) == (["Chatter"], ["Replayed"])
    assert found["llamacpp.py"] == ["ChatUser"]  # its protocol is in test_protocol_registry.py


@pytest.mark.full
def test_chat(server: Server, tmp_path: Path) -> None:
    assert len(ran(server, tmp_path / "r", "chat.py", "-u", "2", "--request-count", "6")) == 6


@pytest.mark.full
def test_mixed(server: Server, tmp_path: Path) -> None:
    got, counts = ran_and_counted(
        server, tmp_path / "r", "mixed.py", "-u", "5", "-t", "2s", "--prefill-concurrency", "2"
    )
    asked = {record.name: record.asked_output_tokens for record in got}
    assert asked == {"short": 8, "long": 60}
    assert counts["/v1/models"] > 0
    assert server.truth()["max_prefilling"] == 2


@pytest.mark.full
def test_open_loop(server: Server, tmp_path: Path) -> None:
    got = ran(server, tmp_path / "r", "open_loop.py", "--request-count", "20")
    told = json.loads((tmp_path / "r" / "run.json").read_text())["run"]
    assert len(got) == told["offer"]["due"] == 20
    assert (told["settings"]["request_rate"], told["settings"]["users"]) == (10.0, None)
    assert {record.limit for record in got} == {5}
    assert server.truth()["max_prefilling"] <= 5


@pytest.mark.full
def test_what_the_command_line_says_wins_over_the_locustfile(
    server: Server, tmp_path: Path
) -> None:
    words = (
        "-u",
        "9",
        "--request-rate",
        "50",
        "--arrival-pattern",
        "constant",
        "--prefill-concurrency",
        "3",
    )
    got = ran(server, tmp_path / "r", "open_loop.py", *words, "--request-count", "20")
    due_at = sorted(record.due_at for record in got)
    assert due_at[-1] - due_at[0] == pytest.approx(19 / 50)
    assert {record.limit for record in got} == {3}


@pytest.mark.full  # sessions of one locustfile are in test_modes.py
def test_conversations(server: Server, tmp_path: Path) -> None:
    got = ran(
        server,
        tmp_path / "r",
        "conversations.py",
        "-u",
        "3",
        "--num-sessions",
        "5",
        "--session-turn-delay-mean",
        "50",
    )
    of_session = defaultdict(list)
    for record in sorted(got, key=lambda record: record.turn):
        of_session[record.session].append(record)
    assert len(of_session) == 5
    for turns in of_session.values():
        assert [record.turn for record in turns] == [0, 1, 2, 3]
        tokens = [record.input_tokens or 0 for record in turns]
        assert all(later > before + 100 for before, later in pairwise(tokens))  # the history grows
        # think time
        assert all(later.asked_at - before.closed_at >= 0.05 for before, later in pairwise(turns))


@pytest.mark.full  # so are fixed schedules
def test_trace_replay(server: Server, tmp_path: Path) -> None:
    path = EXAMPLES / "traces" / "sample.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    told = check_dataset(str(path), timed=True)
    assert (told.kind, told.rows, told.broken) == ("mooncake_trace", 48, 0)
    assert 15 < (told.span_s or 0) < 20
    uses = Counter(hash_id for row in rows for hash_id in row["hash_ids"])
    assert sum(count > 1 for count in uses.values()) > 10  # prefixes are shared
    assert all(len(row["hash_ids"]) == -(-row["input_length"] // 512) for row in rows)
    got = ran(server, tmp_path / "r", "trace_replay.py", "--replay-speedup", "10")
    got.sort(key=lambda record: int(record.session))
    assert [record.session for record in got] == [str(line) for line in range(1, 49)]
    due_s = [record.due_at - got[0].due_at for record in got]
    assert due_s == pytest.approx([row["timestamp"] / 10_000 for row in rows])
    assert [record.output_tokens for record in got] == [row["output_length"] for row in rows]


@pytest.mark.full
def test_rag(server: Server, tmp_path: Path) -> None:
    words = ("-u", "3", "--request-count", "9", "--prefill-concurrency", "1")
    got, counts = ran_and_counted(server, tmp_path / "r", "rag.py", *words)
    assert [record.name for record in got] == ["answer"] * 9
    assert server.truth()["max_prefilling"] == 1
    assert counts["answer"] == 9
    assert counts["retrieve"] >= 9  # not through the gate


@pytest.mark.slow
@pytest.mark.parametrize("words", [
    ("--endpoint-type", "chat"), ("--endpoint-type", "messages"),
    ("--endpoint-type", "responses", "--responses-state", "server"),
    pytest.param(("--endpoint-type", "responses"), marks=pytest.mark.full),
], ids=lambda words: "-".join(words[1::2]))  # fmt: skip
def test_agent(server: Server, tmp_path: Path, words: tuple[str, ...]) -> None:
    """A second turn follows on each call of the tool: the message was joined, and the server took
    it."""
    got, counts = ran_and_counted(
        server, tmp_path / "r", "agent.py", "-u", "2", "--request-count", "8", *words
    )
    names = Counter(record.name for record in got)
    assert 0 <= names["question"] - names["answer"] <= 2  # the last of each user may be alone
    assert {record.finish_reason for record in got if record.name == "question"} == {"tool_calls"}
    assert {record.finish_reason for record in got if record.name == "answer"} == {"length"}
    assert counts["login"] == 2
    assert {record.name: record.schema_valid for record in got} == {
        "question": True,
        "answer": None,
    }
    # the question, the call and its answer, whether they are sent again or kept by the server
    assert len({(record.name, record.input_tokens) for record in got}) == 2


@pytest.mark.slow
def test_two_models(server: Server, tmp_path: Path) -> None:
    got = ran(
        server,
        tmp_path / "r",
        "two_models.py",
        "-u",
        "4",
        "--request-count",
        "20",
        "--prefill-concurrency",
        "2",
    )
    assert {(record.user_class, record.model) for record in got} == {
        ("Asker", "small"),
        ("Summariser", "large"),
    }
    assert server.truth()["max_prefilling"] == 2
    assert {record.asked_output_tokens for record in got if record.model == "large"} == {60}


def test_interference() -> None:
    """The probe: what it does test_probe.py shows, with the same users from inside the package."""
    ours, packaged = EXAMPLES / "interference.py", ROOT / "locust_llm" / "locustfiles" / "probe.py"
    users = [path.read_text().split("\n\n\n")[-1] for path in (ours, packaged)]
    assert users[0] == users[1]
