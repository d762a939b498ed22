"""``locust-llm verify reproduce``: what it reads, prints and writes, against the simulator."""

import json
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import jsonschema
import msgspec
import pytest
from msgspec.structs import replace
from support.records import UNIX, a_run
from support.runs import free_port
from support.scripted import Scripted
from support.simulated import started

from locust_llm.__main__ import main
from locust_llm.client.proxy_choice import find_proxy
from locust_llm.exit_status import ExitStatus
from locust_llm.lab.reproduce import reduce_requests, verify_reproduce
from locust_llm.lab.reproduce.verify_reproduce import connect_server
from locust_llm.records.answer_fault import AnswerFault, RequestBeside
from locust_llm.records.outcomes import CANCELLED, OK
from locust_llm.records.run_facts import write_run

KEY: Final = "sk-a-very-secret-key"
ROOT: Final = Path(__file__).parents[3]
WORDS: Final = ("river", "mill", "boat", "wind", "rain", "hill", "lamp", "road", "tree", "bird")


@pytest.fixture(autouse=True)
def few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_reproduce, "CONFIRM_TRIES", 4)
    monkeypatch.setattr(verify_reproduce, "PAUSE_S", 0.02)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def make_code(number: int) -> str:
    return " ".join(WORDS[(number + place) % len(WORDS)] for place in range(6))


def make_body(number: int, words: int = 5, tokens: int = 10) -> dict[str, Any]:
    text = f"{'word ' * words}Session code: {make_code(number)}."
    messages = [{"role": "user", "content": text}]
    return {"messages": messages, "max_tokens": tokens, "stream": True}


def make_beside(number: int, at_s: float, ended_s: float | None, **fields: Any) -> RequestBeside:
    outcome = fields.pop("outcome", OK if ended_s is not None else "")
    return RequestBeside(
        id=f"r-{number}",
        session=f"s-{number}",
        sent_at=UNIX + at_s,
        ended_at=None if ended_s is None else UNIX + ended_s,
        outcome=outcome,
        body=msgspec.Raw(json.dumps(make_body(number, **fields)).encode()),
    )


def write_folder(
    folder: Path,
    url: str,
    fault: AnswerFault,
    **settings: Any,
) -> Path:
    folder.mkdir(exist_ok=True)
    run = replace(
        a_run(random_seed=7, **{"host": url, **settings}),
        server="vLLM 1.2",
        server_flags={"max_num_seqs": "4"},
    )
    write_run(folder, run)
    (folder / "answer_faults.jsonl").write_bytes(msgspec.json.encode(fault) + b"\n")
    return folder


def make_fault(*faults: str, beside: Sequence[RequestBeside] = (), **fields: Any) -> AnswerFault:
    """Of a prompt that is sent 100 ms after the first request."""
    return AnswerFault(
        id="r-9", session="s-9", worker="local", faults=faults, sent_at=UNIX + 0.1,
        ended_at=UNIX + 0.4, outcome=OK, text="x",
        body=msgspec.Raw(json.dumps(make_body(9, **fields)).encode()), beside=tuple(beside),
    )  # fmt: skip


@pytest.fixture
def broken() -> Iterator[str]:
    with started("--ttft-ms", "20", "--itl-ms", "1", "--quirks", "broken_text=1") as server:
        yield f"http://127.0.0.1:{server.port}"


BESIDE: Final = (make_beside(1, 0.0, 0.05), make_beside(2, 0.05, None))


def test_a_fault_of_one_request_alone(
    tmp_path: Path, broken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_folder(tmp_path / "run", broken, make_fault("broken_text", beside=BESIDE))
    assert main(["verify", "reproduce", str(folder)]) == ExitStatus.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "broken_text: The text is broken: it contains replacement characters. (request r-9)",
        f"3 requests over 0.1 s are replayed to {broken}, for at most 10 min.",
        "3 requests: the fault appeared in 3 of 3 tries",
        "1 request: the fault appeared in 2 of 2 tries",
    ]
    assert lines[4].startswith("Reproduced: 1 of 3 requests suffices (9 tries in ")
    assert lines[5].startswith("The fault appeared in 4 of 4 tries of them (95% interval")
    assert lines[6:] == [
        f"{folder}/reproduce.py shows it: python3 reproduce.py. {folder}/reproduce.json has the "
        "requests."
    ]
    trace = json.loads((folder / "reproduce.json").read_text("utf-8"))
    schema = json.loads(
        (ROOT / "docs" / "schemas" / "verify-reproduce-output.schema.json").read_text("utf-8")
    )
    jsonschema.Draft202012Validator(schema).validate(trace)
    assert trace["result"] == "smallest"
    assert (trace["random_seed"], trace["server_flags"]) == (7, {"max_num_seqs": "4"})
    assert [one["id"] for one in trace["requests"]] == ["r-9"]
    assert trace["requests"][0]["body"] == make_body(9)
    shown = run_script(folder, "--tries", "3")
    assert shown.returncode == 1, shown.stderr
    assert shown.stdout.splitlines() == [
        *(f"try {number}: broken_text" for number in (1, 2, 3)),
        "The fault appeared in 3 of 3 tries.",
    ]
    for name in ("reproduce.py", "reproduce.json"):
        assert KEY not in (folder / name).read_text("utf-8")


def run_script(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """With nothing of this project on the way: no site packages, no working directory."""
    return subprocess.run(
        [sys.executable, "-I", "-S", str(folder / "reproduce.py"), *words],
        capture_output=True, text=True, timeout=60, cwd="/",
    )  # fmt: skip


@pytest.mark.slow
def test_the_script_of_a_sound_server_ends_with_0(tmp_path: Path, broken: str) -> None:
    folder = write_folder(tmp_path / "run", broken, make_fault("broken_text"))
    assert main(["verify", "reproduce", str(folder), "--json"]) == ExitStatus.OK
    with started("--ttft-ms", "20", "--itl-ms", "1") as sound:
        shown = run_script(folder, "--tries", "2", "--host", f"127.0.0.1:{sound.port}")
    assert (shown.returncode, shown.stdout.splitlines()[-1]) == (
        0,
        "The fault appeared in 0 of 2 tries.",
    )


@pytest.mark.slow
def test_json_goes_to_the_output_and_progress_to_the_error(
    tmp_path: Path, broken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_folder(tmp_path / "run", broken, make_fault("broken_text"))
    out = tmp_path / "out"
    out.mkdir()
    words = ["verify", "reproduce", str(folder), "-o", str(out), "--json"]
    assert main(words) == ExitStatus.OK
    printed = capsys.readouterr()
    assert json.loads(printed.out) == json.loads((out / "reproduce.json").read_text("utf-8"))
    assert "Reproduced: 1 of 1 request suffices" in printed.err
    assert not (folder / "reproduce.json").exists()


def test_without_a_reproduction_it_names_the_tries_and_the_bound(
    tmp_path: Path, broken: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sound server. After 20 tries the odds are at most 1 - 0.05 ** (1/20) = 13.9 %."""
    monkeypatch.setattr(reduce_requests.RequestReducer.try_all, "__defaults__", (10,))
    with started("--ttft-ms", "5", "--itl-ms", "1") as sound:
        folder = write_folder(
            tmp_path / "run", broken, make_fault("broken_text", beside=BESIDE[:1])
        )
        words = ["verify", "reproduce", str(folder), "--host", f"127.0.0.1:{sound.port}"]
        assert main(words) == ExitStatus.INCONCLUSIVE
    last, advice = capsys.readouterr().out.splitlines()[-2:]
    assert advice == "More tries need more time (-t)."
    assert last.startswith("Not reproduced: the fault did not appear in 20 tries of 2 requests in ")
    assert last.endswith(" min. Its odds in a try are at most 13.9% (95% confidence).")
    assert not (folder / "reproduce.py").exists()


@pytest.mark.full
def test_it_ends_in_its_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with started("--ttft-ms", "500", "--itl-ms", "1") as sound:
        url = f"http://127.0.0.1:{sound.port}"
        folder = write_folder(tmp_path / "run", url, make_fault("broken_text"))
        words = ["verify", "reproduce", str(folder), "-t", "10", "--json"]
        assert main(words) == ExitStatus.INCONCLUSIVE
    found = json.loads(capsys.readouterr().out)
    assert found["result"] == "not_reproduced"
    assert found["requests"] == []
    assert 8 < found["seconds"] < 12
    assert found["first_odds"]["high"] == pytest.approx(1 - 0.05 ** (1 / found["tries"]))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["{folder}"], "http://127.0.0.1:{port} does not answer: [Errno 111] Connection refused"),
        (["{folder}", "--fault", "2"], "answer_faults.jsonl has no fault 2: it has 1"),
        (["{folder}", "-o", "{folder}/none"], "{folder}/none is no folder"),
        (["{folder}/none"], "{folder}/none: there is no run.json: no fault was found"),
    ],
)
def test_what_is_refused(
    tmp_path: Path, words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    folder = write_folder(tmp_path, f"http://127.0.0.1:{port}", make_fault("broken_text"))
    given = [word.format(folder=folder) for word in words]
    assert main(["verify", "reproduce", *given]) == ExitStatus.REFUSED
    expected = f"locust-llm: error: {line.format(folder=folder, port=port)}\n"
    assert capsys.readouterr().err == expected


def test_a_server_is_reached_as_in_a_run(
    scripted_tls: Scripted, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same certificates, the query of its address and the headers of every request."""
    run = a_run()
    host = f"https://127.0.0.1:{scripted_tls.ports['tls']}/team?api-version=2"
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    strict = connect_server(host, run, {"X-A": "b"}, insecure=False)
    with pytest.raises(ssl.SSLCertVerificationError):
        strict.connect(5)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    for insecure in (False, True):
        server = connect_server(host, run, {"X-A": "b"}, insecure=insecure)
        server.connect(5).close()
        assert server.path == "/team/v1/chat/completions?api-version=2"
        assert server.headers["X-A"] == "b"


@pytest.mark.parametrize("url", ["http://a:b@p.test:2", "socks5://p.test:2"])
def test_the_proxy_of_a_run_is_used_or_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[object] = []
    monkeypatch.setattr(verify_reproduce, "Server", lambda *given: used.append(given[-1]))
    find_proxy.cache_clear()
    monkeypatch.setenv("http_proxy", url)
    if url.startswith("socks5"):
        with pytest.raises(ValueError, match="only http:// is supported"):
            connect_server("http://far.test", a_run(), {}, insecure=False)
    else:
        connect_server("http://far.test", a_run(), {}, insecure=False)
        assert used == [("p.test", 2, "a:b")]
    find_proxy.cache_clear()


@pytest.mark.slow
def test_a_request_with_a_secret_is_left_out(
    tmp_path: Path, broken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hidden = replace(BESIDE[0], body=msgspec.Raw(b"null"))
    fault = make_fault("broken_text", beside=[hidden, BESIDE[1]])
    folder = write_folder(tmp_path / "run", broken, fault)
    assert main(["verify", "reproduce", str(folder)]) == ExitStatus.OK
    line = "WARNING: 1 request cannot be replayed: bodies with secrets are not kept."
    assert line in capsys.readouterr().out
    own = replace(fault, body=msgspec.Raw(b"null"))
    write_folder(folder, broken, own)
    assert main(["verify", "reproduce", str(folder)]) == ExitStatus.REFUSED
    assert "its body was not kept" in capsys.readouterr().err


@pytest.mark.full
def test_three_of_nine_requests_leak_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A long answer, a long prompt and a cancelled request between others."""
    others = [make_beside(number, 0.05 * number, 0.05 * number + 0.45) for number in range(1, 7)]
    beside = [
        make_beside(0, 0.0, None, tokens=250),
        *others,
        make_beside(7, 0.9, 1.05, outcome=CANCELLED),
    ]
    fault = replace(
        make_fault("foreign_marker", beside=beside, words=1_100),
        sent_at=UNIX + 0.8,
        ended_at=UNIX + 1.3,
    )
    quirks = ("--quirks", "cancel_leak=0.8")
    with started("--ttft-ms", "400", "--itl-ms", "10", *quirks) as server:
        url = f"http://user:password@127.0.0.1:{server.port}"
        folder = write_folder(tmp_path / "run", url, fault, session_header="X-Session")
        assert main(["verify", "reproduce", str(folder), "--json"]) == ExitStatus.OK
        found = json.loads(capsys.readouterr().out)
        shown = run_script(folder, "--tries", "10")
    assert [one["id"] for one in found["requests"]] == ["r-0", "r-9", "r-7"]
    assert [one["at_s"] for one in found["requests"]] == pytest.approx([0.0, 0.8, 0.9])
    assert found["requests"][2]["cancel_after_s"] == pytest.approx(0.15)
    assert found["requests"][0]["open"]
    assert found["requests"][0]["headers"] == {"X-Session": "s-0"}
    assert found["odds"]["hits"] >= 1
    assert shown.returncode == 1, shown.stdout
    assert f": the session code of another request: {make_code(7)}\n" in shown.stdout
    assert "password" not in (folder / "reproduce.py").read_text("utf-8")
