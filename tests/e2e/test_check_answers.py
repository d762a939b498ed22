"""``--check-answers`` in whole runs, against a server that leaks by plan: each leak is found where it
was planted, and nothing else is; what is replayed stays as it is."""

import json
from pathlib import Path
from typing import Any, Final

import pytest
from support.leaking_server import ASK, CODE, LeakingServer, leaking
from support.runs import Server, records, run

from locust_llm.answers.session_markers import ASKED_SHARE
from locust_llm.records.answer_checks import AnswerChecks
from locust_llm.records.answer_fault import (
    ANSWER_FAULTS_FILE,
    AnswerFault,
    decode_answer_fault,
)
from locust_llm.records.record import Record

SHORT: Final = (
    "--synthetic-input-tokens-mean", "80", "--output-tokens-mean", "80", "--no-probe",
    "--no-server-metrics", "--selftest", "off",
)  # fmt: skip
USERS: Final = ("-u", "4")
OTHERS: Final = ("completions", "messages", "responses")
slow: Final = pytest.mark.slow
RUN_PY: Final = str(Path(__file__).parents[2] / "locust_llm" / "locustfiles" / "run.py")


def run_checked(
    server: LeakingServer,
    folder: Path,
    *words: str,
    locustfile: str = RUN_PY,
    users: tuple[str, ...] = USERS,
) -> list[Record]:
    """The records of a run that went well, over all its stages."""
    options = (*SHORT, *users, "--check-answers", *words)
    ended = run(Server(server.url), folder, *options, locustfile=locustfile)
    assert "Traceback" not in ended.stderr, ended.stderr
    return records(folder)


def read_faults(folder: Path) -> list[AnswerFault]:
    lines = (folder / ANSWER_FAULTS_FILE).read_bytes().splitlines()
    return [decode_answer_fault(line) for line in lines]


def checks_of(record: Record) -> AnswerChecks:
    assert record.answer is not None
    return record.answer


def assert_only_planted_leaks_found(server: LeakingServer, made: list[Record]) -> None:
    """Each leak is at its request, and names the session that has this code."""
    sent = [record for record in made if record.sent_at is not None]
    found = {record.id: checks_of(record).foreign for record in sent if checks_of(record).foreign}
    assert found.keys() == server.leaks.keys()
    codes = server.codes
    number_of_code = {
        codes[record.id]: checks_of(record).marker for record in sent if codes[record.id]
    }
    assert found == {
        request_id: (number_of_code[leaked],) for request_id, leaked in server.leaks.items()
    }


@pytest.mark.parametrize(
    ("kind", "streaming"),
    [
        ("chat", "--streaming"),
        *(pytest.param(kind, "--streaming", marks=slow) for kind in OTHERS),
        *(pytest.param(kind, "--no-streaming", marks=slow) for kind in ("chat", *OTHERS)),
    ],
)
def test_each_planted_leak_is_found_in_every_protocol(
    tmp_path: Path, kind: str, streaming: str
) -> None:
    with leaking(leak_every=8) as server:
        made = run_checked(
            server, tmp_path / "out", "--endpoint-type", kind, streaming, "--request-count", "40"
        )
    assert len(made) == 40
    assert len(server.leaks) == 5
    assert_only_planted_leaks_found(server, made)
    assert all(checks_of(record).searched for record in made)
    assert all(checks_of(record).faults == () for record in made)
    assert len({checks_of(record).id_hash for record in made}) == 40
    asked = [record for record in made if checks_of(record).asked]
    assert abs(len(asked) / 40 - ASKED_SHARE) < 0.05
    assert {record.id for record in made if checks_of(record).repeated} == {
        record.id for record in asked
    }
    by_id = {asked.id: asked for asked in server.asked}
    assert {record.id for record in asked} == {
        name for name, one in by_id.items() if one.prompt.endswith(ASK)
    }


@slow
@pytest.mark.parametrize("where", ["reasoning", "tool"])
def test_a_leak_in_reasoning_or_in_the_arguments_of_a_tool_is_found(
    tmp_path: Path, where: str
) -> None:
    with leaking(leak_every=5, where=where) as server:
        made = run_checked(server, tmp_path / "out", "--request-count", "20")
    assert len(server.leaks) == 4
    assert_only_planted_leaks_found(server, made)


def test_the_evidence_has_the_request_the_answer_and_the_requests_beside_it(
    tmp_path: Path,
) -> None:
    with leaking(leak_every=10, each_s=0.003) as server:
        made = run_checked(server, tmp_path / "out", "--request-count", "40")
    faults = read_faults(tmp_path / "out")
    asked = {one.id: one for one in server.asked}
    assert sorted(fault.id for fault in faults) == sorted(server.leaks)
    records_of = {record.id: record for record in made}
    for fault in faults:
        record = records_of[fault.id]
        assert fault.faults == ("foreign_marker",)
        assert (fault.session, fault.worker) == (record.session, record.worker)
        assert (fault.sent_at, fault.ended_at) == (record.sent_unix_s, record.closed_unix_s)
        assert fault.markers == checks_of(record).foreign
        assert server.leaks[fault.id] in fault.text.lower()
        assert json.loads(bytes(fault.body)) == asked[fault.id].body
        beside = {one.id: one for one in fault.beside}
        open_beside = {
            other.id
            for other in made
            if other.id != fault.id
            and other.sent_unix_s < fault.ended_at
            and other.closed_unix_s > fault.sent_at
        }
        assert open_beside <= beside.keys()
        assert open_beside  # of four users
        source = [one for one in fault.beside if one.marker in fault.markers]
        assert [asked[one.id].code for one in source] == [server.leaks[fault.id]]
        for one in fault.beside:
            assert json.loads(bytes(one.body)) == asked[one.id].body


def test_every_worker_knows_the_markers_of_all_others(tmp_path: Path) -> None:
    with leaking(leak_every=6, each_s=0.02) as server:
        made = run_checked(server, tmp_path / "out", "--request-count", "60", "--processes", "2")
    assert len(made) == 60
    assert len({record.worker for record in made}) == 2
    assert_only_planted_leaks_found(server, made)
    worker_of = {server.codes[record.id]: record.worker for record in made}
    own = {record.id: record.worker for record in made}
    across = [name for name, leaked in server.leaks.items() if worker_of[leaked] != own[name]]
    assert across, "no leak crossed the workers"
    assert sorted(fault.id for fault in read_faults(tmp_path / "out")) == sorted(server.leaks)


def test_the_turns_of_a_session_share_one_marker(tmp_path: Path) -> None:
    with leaking(leak_every=7) as server:
        made = run_checked(
            server, tmp_path / "out", "--session-turns-mean", "4", "--session-turns-stddev", "0",
            "--num-sessions", "12",
        )  # fmt: skip
    assert len(made) == 48
    assert_only_planted_leaks_found(server, made)
    by_session: dict[str, set[int | None]] = {}
    for record in made:
        by_session.setdefault(record.session, set()).add(checks_of(record).marker)
    assert all(len(markers) == 1 for markers in by_session.values())
    assert len({marker for markers in by_session.values() for marker in markers}) == 12
    for one in server.asked:
        first, *later = [m for m in one.body["messages"] if m["role"] == "user"]
        assert CODE.search(first["content"])
        assert not [message for message in later if "Session code" in message["content"]]


@slow
def test_a_sweep_checks_each_of_its_stages(tmp_path: Path) -> None:
    with leaking(leak_every=9, each_s=0.005) as server:
        made = run_checked(
            server, tmp_path / "out", "--sweep", "concurrency=2,4", "--stage-duration", "1..2",
            "--stage-requests", "12", users=(),
        )  # fmt: skip
    assert {record.stage for record in made if record.phase == "profiling"} == {1, 2}
    assert len(server.leaks) > 2
    assert_only_planted_leaks_found(server, made)


@slow
def test_both_arms_are_checked(tmp_path: Path) -> None:
    with leaking(leak_every=9, each_s=0.005) as server, leaking(each_s=0.005) as candidate:
        made = run_checked(
            server, tmp_path / "out", "--candidate", candidate.url, "--block-duration", "0.6",
            "-t", "14",
        )  # fmt: skip
    assert {record.arm for record in made} == {"base", "candidate"}
    assert len(server.leaks) > 3
    found = {record.id for record in made if checks_of(record).foreign}
    assert found == server.leaks.keys()
    assert not [one for one in candidate.asked if not one.code]


LOCUSTFILE: Final = """
from locust import task
from locust_llm import LLMUser

class Own(LLMUser):
    @task
    def talk(self):
        self.chat(name="chat")
        self.chat("A prompt of my own, untouched.", name="own")
        self.chat(input_tokens=60, max_tokens=10, name="sized")
        with self.open_session() as session:
            session.chat(name="opened")
            branch, other = session.fork(), session.fork()
            branch.chat(name="branch")
            other.chat("And mine?", name="own turn")
        with self.open_session() as session:
            session.chat("A session of my own.", name="own session")
            session.chat(name="own session")
"""


def test_locustfiles_get_markers_in_synthetic_prompts_alone(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(LOCUSTFILE)
    with leaking(leak_every=11) as server:
        made = run_checked(server, tmp_path / "out", "--request-count", "80", locustfile=str(file))
    asked = {one.id: one for one in server.asked}
    by_name: dict[str, list[Record]] = {}
    for record in made:
        by_name.setdefault(record.name, []).append(record)
    for name in ("chat", "sized", "opened", "branch", "own turn"):
        assert all(asked[record.id].code for record in by_name[name]), name
        assert all(checks_of(record).marker is not None for record in by_name[name]), name
    for name in ("own", "own session"):
        assert not any(asked[record.id].code for record in by_name[name]), name
        assert all(checks_of(record).marker is None for record in by_name[name]), name
    for record in by_name["own"]:
        assert [m["content"] for m in asked[record.id].body["messages"]] == [
            "A prompt of my own, untouched."
        ]
    marker_of: dict[str, set[int | None]] = {}
    for name in ("opened", "branch", "own turn"):
        for record in by_name[name]:
            marker_of.setdefault(record.session, set()).add(checks_of(record).marker)
    assert all(len(markers) == 1 for markers in marker_of.values())
    found = {record.id for record in made if checks_of(record).foreign}
    assert found == server.leaks.keys()


PASSED_ON: Final = """
from locust import task
from locust_llm import LLMUser

class PassesOn(LLMUser):
    @task
    def talk(self):
        first = self.chat(name="first")
        code = first.message["content"]
        prompt = self.last_prompt if hasattr(self, "last_prompt") else ""
        self.chat(f"Summarise: {code} {prompt}", name="second")
        self.last_prompt = code
"""


@slow
def test_what_a_locustfile_itself_passes_on_is_no_leak(tmp_path: Path) -> None:
    """A fifth of the first answers begins with its code, which the second prompt then has."""
    file = tmp_path / "passes_on.py"
    file.write_text(PASSED_ON)
    with leaking() as server:
        made = run_checked(server, tmp_path / "out", "--request-count", "60", locustfile=str(file))
    assert len(made) == 60
    assert [record for record in made if checks_of(record).foreign] == []


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    rows = [
        {"messages": [{"role": "user", "content": f"Question {number}: what is it?"}]}
        for number in range(8)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": number * 20, "input_length": 600, "output_length": 5, "hash_ids": [number]}
        for number in range(8)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def list_bodies(server: LeakingServer) -> list[str]:
    return sorted(json.dumps(one.body, sort_keys=True) for one in server.asked)


@pytest.mark.parametrize("kind", ["dataset", pytest.param("trace", marks=slow)])
def test_what_is_replayed_is_sent_byte_by_byte_as_without_the_option(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(kind)
    words = ["--input-file", str(path), "--random-seed", "1"]
    if kind == "trace":
        words += ["--custom-dataset-type", "mooncake_trace", "--fixed-schedule"]
    with leaking() as plain:
        options = (*SHORT, *USERS, *words)
        run(Server(plain.url), tmp_path / "plain", *options, locustfile=RUN_PY)
    with leaking() as checked:
        made = run_checked(checked, tmp_path / "checked", *words)
    assert len(plain.asked) == 8
    assert list_bodies(plain) == list_bodies(checked)
    assert [checks_of(record).marker for record in made] == [None] * 8
    assert all(checks_of(record).searched for record in made)


@pytest.mark.parametrize("kind", [pytest.param("dataset", marks=slow), "trace"])
def test_what_is_replayed_is_marked_on_request_and_leaks_are_found(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(kind)
    words = ["--input-file", str(path), "--random-seed", "1", "--mark-replayed"]
    if kind == "trace":
        words += ["--custom-dataset-type", "mooncake_trace", "--fixed-schedule"]
    with leaking(leak_every=4) as server:
        made = run_checked(server, tmp_path / "out", *words)
    assert len(made) == 8
    assert len({checks_of(record).marker for record in made}) == 8
    assert all(server.codes.values())
    assert len(server.leaks) >= 1
    assert_only_planted_leaks_found(server, made)
    run_facts = json.loads((tmp_path / "out" / "run.json").read_bytes())
    assert run_facts["answers"]["marked"]["replayed"] is True


def test_without_the_option_there_is_nothing_of_it(tmp_path: Path) -> None:
    with leaking(leak_every=2) as server:
        words = (*SHORT, *USERS, "--request-count", "8")
        run(Server(server.url), tmp_path / "out", *words, locustfile=RUN_PY)
    folder = tmp_path / "out"
    assert len(server.asked) == 8
    assert not [one for one in server.asked if "ession code" in one.prompt]
    assert [record.answer for record in records(folder)] == [None] * 8
    assert b'"answer"' not in (folder / "profile_export.jsonl").read_bytes()
    assert not (folder / ANSWER_FAULTS_FILE).exists()


@slow
def test_the_texts_are_kept_only_on_request_and_no_file_has_the_key(tmp_path: Path) -> None:
    for words, kept in ((["--keep-text"], True), ([], False)):
        folder = tmp_path / str(kept)
        with leaking() as server:
            made = run_checked(server, folder, "--request-count", "8", *words)
        texts = {checks_of(record).text for record in made}
        assert all("word0 word1" in text for text in texts) if kept else texts == {""}
        for path in folder.rglob("*"):
            assert path.is_dir() or b"marker_key" not in path.read_bytes(), path


@slow
def test_prompts_are_no_longer_than_without_markers(tmp_path: Path) -> None:
    """By the words of the prompts: the survey has no counts of this server."""
    lengths: dict[bool, list[int]] = {}
    for checks in (False, True):
        with leaking() as server:
            words: list[Any] = [*SHORT, "--request-count", "30", "--random-seed", "1", "-u", "1"]
            if checks:
                words.append("--check-answers")
            folder = tmp_path / str(checks)
            run(Server(server.url), folder, *words, locustfile=RUN_PY)
        lengths[checks] = [len(one.prompt.split()) for one in server.asked]
    assert len(lengths[True]) == len(lengths[False]) == 30
    means = [sum(lengths[checks]) / 30 for checks in (False, True)]
    assert abs(means[1] - means[0]) < 1.0
