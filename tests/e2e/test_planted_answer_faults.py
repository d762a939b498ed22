"""``--check-answers`` against the simulator's planted faults, in whole runs: what was planted is found
at the answers that have it, and nothing else."""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any, Final

from support.runs import Server, records, run

from locust_llm.answers.session_markers import ASKED_SHARE
from locust_llm.demo_command import start_simulator
from locust_llm.records.record import Record

RUN_PY: Final = str(Path(__file__).parents[2] / "locust_llm" / "locustfiles" / "run.py")
REQUESTS: Final = 500
LOAD: Final = (
    "--synthetic-input-tokens-mean", "80", "--output-tokens-mean", "20", "--no-probe",
    "--no-server-metrics", "--selftest", "off", "-u", "10", "--check-answers",
    "--request-count", str(REQUESTS),
)  # fmt: skip
FAST: Final = ("--ttft-ms", "20", "--itl-ms", "1")


def check(folder: Path, quirks: str, *words: str) -> tuple[list[Record], dict[str, list[str]]]:
    """(the records, the planted faults of each request of the load by its id)."""
    with start_simulator(*FAST, "--quirks", quirks) as url:
        server = Server(url)
        ended = run(server, folder / "run", *LOAD, *words, locustfile=RUN_PY)
        assert "Traceback" not in ended.stderr, ended.stderr
        planted = {row["id"]: row.get("planted", []) for row in server.rows()}
    found = records(folder / "run")
    assert len(found) == REQUESTS
    return found, planted


def read_answers(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run" / "run.json").read_bytes())["answers"]
    return found


def with_fault(found: list[Record], name: str) -> set[str]:
    return {record.id for record in found if record.answer and name in record.answer.faults}


def with_planted(planted: dict[str, list[str]], quirk: str) -> set[str]:
    return {request for request, quirks in planted.items() if quirk in quirks}


def test_what_is_planted_is_found_where_it_is(tmp_path: Path) -> None:
    quirks = "swap=0.05,wrong_usage=0.05,wrong_id=0.05,duplicate_id=0.02,near_tie=0.3"
    found, planted = check(tmp_path, quirks)
    assert with_fault(found, "wrong_usage") == with_planted(planted, "wrong_usage")
    assert with_fault(found, "id_switched") == with_planted(planted, "wrong_id")
    leaks = {record.id for record in found if record.answer and record.answer.foreign}
    swapped = with_planted(planted, "swap")
    assert leaks <= swapped
    count = len(swapped)
    spread = 4 * math.sqrt(count * ASKED_SHARE * (1 - ASKED_SHARE))
    assert 0 < len(leaks) <= count * ASKED_SHARE + spread
    assert len(leaks) >= count * ASKED_SHARE - spread
    faults = Counter(name for r in found for name in (r.answer.faults if r.answer else ()))
    assert set(faults) == {"wrong_usage", "id_switched"}
    isolation = read_answers(tmp_path)["isolation"]
    assert isolation["leaks"] == len(leaks)
    # of an answer with the id of the one before both have it twice
    assert isolation["faults"]["duplicate_id"] >= len(with_planted(planted, "duplicate_id"))


def test_a_sound_server_with_near_ties_gives_no_alarm(tmp_path: Path) -> None:
    found, _ = check(tmp_path, "near_tie=0.3")
    assert all(record.answer and record.answer.searched for record in found)
    assert [record for record in found if record.answer and record.answer.foreign] == []
    answers = read_answers(tmp_path)
    assert answers["isolation"]["faults"] == {}
    repeated = [record for record in found if record.answer and record.answer.repeated]
    assert len(repeated) == answers["isolation"]["asked"]
    references = answers["references"]
    assert references.get("faults", {}) == {}
    rates = references["rates"]
    assert sum(rate.get("near_ties", 0) for rate in rates) > 0
    assert [rate for rate in rates if rate.get("wide", 0) or rate.get("unknown", 0)] == []
