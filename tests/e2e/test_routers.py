"""Replicas: several addresses without a router, several replicas behind one, and what the report
says of each."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest
from support.runs import Server, records, run

from locust_llm.demo_command import start_simulator
from locust_llm.records.record import Record

pytestmark = pytest.mark.slow

FAST: Final = ("--time-scale", "0.05", "--truth", "full")
TURNS: Final = (
    "-u", "3", "--num-sessions", "6", "--session-turns-mean", "3", "--synthetic-input-tokens-mean",
    "300",
    "--output-tokens-mean", "8", "--no-probe", "--random-seed", "7",
)  # fmt: skip


def ran(server: Server, folder: Path, *words: str) -> list[Record]:
    done = run(server, folder, *TURNS, *words)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return records(folder)


def by_session(got: Iterable[Record]) -> dict[str, list[str]]:
    """The backends of its turns."""
    found = defaultdict[str, list[str]](list)
    for record in sorted(got, key=lambda record: record.turn):
        found[record.session].append(record.backend)
    return found


def test_of_two_addresses_each_session_stays_with_one(tmp_path: Path) -> None:
    with start_simulator(*FAST) as a, start_simulator(*FAST) as b:
        servers = [Server(a), Server(b)]
        both = Server(",".join(server.url.removeprefix("http://") for server in servers))
        got = ran(both, tmp_path / "r", "--processes", "2")
        assert Counter(record.backend for record in got) == {a: 9, b: 9}
        assert all(len(set(backends)) == 1 for backends in by_session(got).values())
        for server in servers:
            mine = {record.id for record in got if record.backend == server.url}
            assert mine == {row["id"] for row in server.rows()}
        # a connection of each user to each address, the questions before the load, the pages of
        # metrics, their last reading
        assert sum(server.truth()["connections"] for server in servers) <= 3 * 2 + 2 * 5
        assert all(record.cached_tokens for record in got if record.turn)
    # an address is code: no link
    text = (tmp_path / "r" / "summary.md").read_text().replace("`", "")
    assert f"{a}, {b}" in text
    assert "2 addresses: a new session goes to the next one and stays there" in text
    rows = [line for line in text.splitlines() if line.startswith(("| http://", "|http://"))]
    assert sorted(row.replace(" ", "").split("|")[1:5] for row in rows) == [
        [url, "50.0%", "9", "0.0%"] for url in sorted((a, b))
    ]


def test_a_token_and_a_header_find_the_replica_and_neither_is_written_down(tmp_path: Path) -> None:
    backend = "--backend-header", "X-Backend"
    with start_simulator(*FAST, "--replicas", "2", "--route", "token") as url:
        apart = by_session(ran(Server(url), tmp_path / "apart", *backend))
        assert any(len(set(backends)) == 2 for backends in apart.values())
        together = ran(
            Server(url), tmp_path / "token", *backend, "--echo-header", "x-session-token"
        )
        assert all(len(set(backends)) == 1 for backends in by_session(together).values())
        assert {record.backend for record in together} == {"0", "1"}
        assert all(record.cached_tokens for record in together if record.turn)
        for file in (tmp_path / "token").rglob("*"):
            assert b"replica-" not in (file.read_bytes() if file.is_file() else b""), file
    with start_simulator(*FAST, "--replicas", "2", "--route", "session") as url:
        got = ran(Server(url), tmp_path / "named", *backend, "--session-header", "mlperf")
        assert all(len(set(backends)) == 1 for backends in by_session(got).values())
    text = (tmp_path / "named" / "summary.md").read_text()
    assert "session X-Session-ID; backend X-Backend" in text


def test_what_has_one_address_refuses_two(tmp_path: Path) -> None:
    two = Server("localhost:1,localhost:2")
    done = run(
        two,
        tmp_path / "r",
        "--echo-header",
        "x-session-token",
        "--backend-header",
        "X-Session-Token",
    )
    assert (
        "--backend-header X-Session-Token may hold a secret, and its values are written to reports"
        in done.stderr
    )
    done = run(two, tmp_path / "r")
    assert "http://localhost:1: cannot reach http://localhost:1" in done.stderr
