"""A server that puts every key that it is given, control characters and megabytes wherever a server
can put a text: none of it in anything that a run writes, shows or makes of its records."""

import csv
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
from support.hostile_server import Asked, Hostile, answer, hostile

from locust_llm.__main__ import main
from locust_llm.text.hide_secrets import SECRET_PART_CHARS

KEY: Final = "sk-of-the-environment-0123456789abcdef"
TEAM: Final = "onlywordsareinthissecret"
SECRETS: Final = (KEY, TEAM)
NASTY: Final = (
    "\x1b[31m\x1b]0;title\x07\u202e\u2066\u200b\u200e\u061c\x00\x9b\ud800\u2028"
    "=cmd|' /C calc'!A0 </script><img src=x>|`[a](b)"
)
LONG: Final = "y" * 2_000_000


def event(data: str) -> bytes:
    return f"data: {data}\n\n".encode("utf-8", "surrogatepass")


def stream(*events: bytes, done: bool = True, **headers: str) -> list[bytes]:
    body = b"".join(events) + b"data: [DONE]\n\n" * done
    return [answer(body, kind="text/event-stream", **headers)]


def chunk(content: str = "a", **choice: Any) -> bytes:
    return event(json.dumps({"choices": [{"index": 0, "delta": {"content": content}, **choice}]}))


def line_of(text: str) -> str:
    """As a header can carry it."""
    return re.sub(r"[^\t -~\x80-\xff]", "", text)


END: Final = chunk("", finish_reason="stop")

# what a chat completion gets, by name; from a text with the secrets in it
ECHOES: Final[dict[str, Callable[[str], Iterable[bytes]]]] = {
    "content": lambda text: stream(chunk(text), END),
    "reasoning": lambda text: stream(
        event(json.dumps({"choices": [{"delta": {"reasoning": text}}]})), END
    ),
    "finish_reason": lambda text: stream(chunk(), chunk("", finish_reason=text)),
    "finish_reason of words": lambda text: stream(chunk(), chunk("", finish_reason=TEAM)),
    "no content, finish_reason of words": lambda text: stream(
        event(
            f'{{"choices":[{{"delta":{{}},"finish_reason":"{TEAM}"}}],"usage":{{"completion_tokens":1}}}}'
        )
    ),
    "an error in a stream": lambda text: stream(
        chunk(), event(json.dumps({"error": {"message": text}}))
    ),
    "an error in an object": lambda text: stream(
        chunk(), event(json.dumps({"error": {"deep": {text: [text]}}}))
    ),
    "an event named error": lambda text: stream(
        chunk(), b"event: error\n" + event(json.dumps(text))
    ),
    "a broken event": lambda text: stream(
        chunk(), event('{"choices": ' + re.sub(r"[\r\n]", "", text))
    ),
    "the name of an event": lambda text: stream(
        b"event: " + line_of(text).encode("latin-1") + b"\n" + chunk(), END
    ),
    "the name of a field": lambda text: stream(
        line_of(text).encode("latin-1") + b": x\n" + chunk(), END
    ),
    "a comment": lambda text: stream(
        b": " + re.sub(r"[\r\n]", "", text).encode("utf-8", "replace") + b"\n\n", chunk()
    ),
    "the index of a choice": lambda text: stream(
        chunk(index=text), chunk("", index=text, finish_reason="stop")
    ),
    "an error page": lambda text: [answer(f"<html><pre>{text}</pre>", 500, kind="text/html")],
    "an error object": lambda text: [
        answer(json.dumps({"error": {"message": text, "type": text}}), 400)
    ],
    "an error in detail": lambda text: [answer(json.dumps({"detail": [{"msg": text}]}), 422)],
    "no completion": lambda text: [answer(json.dumps({"object": text, "hello": text}))],
    "no JSON": lambda text: [answer(text)],
    "Location": lambda text: [answer("", 307, Location="http://x/" + line_of(text)[:9_000])],
    "Retry-After": lambda text: [answer("", 429, Retry_After=line_of(text)[:9_000])],
    "Content-Encoding": lambda text: [answer("", Content_Encoding=line_of(text)[:9_000])],
    "Content-Type": lambda text: [answer("{}", kind=line_of(text)[:9_000])],
    "Set-Cookie": lambda text: stream(chunk(), END, Set_Cookie=f"c={line_of(text)[:9_000]}"),
    "the reason phrase": lambda text: [answer("{}", f"503 {line_of(text)[:9_000]}")],
    "no HTTP": lambda text: [text.encode("utf-8", "replace")],
    "a chunk's size": lambda text: [
        answer(
            line_of(text).encode("latin-1", "replace"),
            Transfer_Encoding="chunked",
            kind="text/event-stream",
        )
    ],
    "an event without end": lambda text: stream(
        chunk(), b"data: " + text.encode("utf-8", "replace"), done=False
    ),
    "half of it": lambda text: stream(
        event(json.dumps({"error": f"the key {KEY[: len(KEY) // 2]}"}))
    ),
    "the other half": lambda text: stream(
        event(json.dumps({"error": f"{KEY[len(KEY) // 2 :]} was the key"}))
    ),
    "as a URL has it": lambda text: stream(event(json.dumps({"error": quote(f"the key {KEY}=")}))),
    "where a message is cut off": lambda text: [answer("x" * 4_080 + KEY, 500)],
    "nothing wide within": lambda text: stream(event(json.dumps({"error": "\u200b".join(KEY)}))),
}


def echo(asked: Asked) -> Iterable[bytes]:
    """Each of them in turn; what the survey asks gets a plain answer."""
    if "x-locust-llm-probe" in asked.headers and not json.loads(asked.body).get("stream"):
        return [
            answer(
                '{"choices":[{"message":{"content":"a"},"finish_reason":"length"}],"usage":{"prompt_tokens":9}}'
            )
        ]
    number = int((asked.headers.get("x-request-id") or "-0").rpartition("-")[2].partition(".")[0])
    echoes = list(ECHOES.values())
    text = f"you sent {asked.headers.get('authorization')} {asked.headers.get('x-team')} {NASTY} "
    return echoes[number % len(echoes)](text + LONG[: (0, 5_000, 300_000)[number % 3]] + text)


@pytest.fixture
def server() -> Iterator[Hostile]:
    def listed(asked: Asked) -> list[bytes]:
        said = f"{asked.headers.get('authorization')} {NASTY}"
        rows = [
            {"id": said, "owned_by": said, "object": said},
            {"id": "tiny", "owned_by": said},
            {"id": KEY},
            {"id": LONG},
        ]
        return [
            answer(
                json.dumps({"object": "list", "data": rows}),
                Server=f"nginx {KEY} {line_of(NASTY)} " + "z" * 5_000,
            )
        ]

    def figures(asked: Asked) -> list[bytes]:
        lines = [f'vllm:num_requests_running{{model_name="{KEY}{NASTY}"}} 1', f"vllm:{KEY} 3",
            f"# HELP vllm:x {KEY}", KEY,
                 'vllm:num_preemptions_total{a="b"} 1e308',
                 'vllm:num_preemptions_total{a="c"} 1e308',
                 f"vllm:kv_cache_usage_perc {KEY}", "vllm:" + LONG]  # fmt: skip
        return [answer("\n".join(lines), kind="text/plain")]

    with hostile() as made:
        made.paths |= {"/v1/models": listed, "/v1/chat/completions": echo, "/metrics": figures}
        made.paths["/tokenize"] = lambda asked: [answer(f'{{"count": "{KEY}"}}', 400)]
        yield made


def run(*words: str, statuses: Iterable[int] = (0,)) -> str:
    """The console of a command of Locust, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "locust_llm", *words],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=90,
        check=False,
    )  # fmt: skip
    return fine(done.returncode, statuses, done.stdout.decode("utf-8", "surrogateescape"))


def fine(status: int, statuses: Iterable[int], text: str) -> str:
    assert status in statuses, text[-5_000:]
    assert "Traceback" not in text, text[-5_000:]
    return text


ODD: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]|\r(?!\n)"
)


def check(name: str, text: str) -> None:
    """Nothing of a secret, nothing but text, and no line without end."""
    for secret in SECRETS:
        parts = [
            secret[at : at + SECRET_PART_CHARS] for at in range(len(secret) - SECRET_PART_CHARS + 1)
        ]
        assert [part for part in parts if part in text] == [], name
    assert ODD.search(text) is None, (name, text[max(0, ODD.search(text).start() - 80) :][:100])  # type: ignore[union-attr]
    longest = max(map(len, text.splitlines()), default=0)
    assert longest < (1_000_000 if name.endswith((".html", "decoded")) else 30_000), (name, longest)
    if name.endswith((".html", ".md", ".svg")):  # nor is anything that it wrote a part of a page
        assert "<img src=x" not in text, name
    if name.endswith(".csv"):  # or a formula
        cells = [cell for row in csv.reader(text.splitlines()) for cell in row]
        assert [cell for cell in cells if re.match(r"[=+\-@\t\r](?![\d.]+$)", cell)] == [], name


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [(), pytest.param(("--processes", "2"), marks=pytest.mark.full)], ids=["one", "two"]
)
def test_nothing_of_it_is_in_any_file_or_line(
    server: Hostile,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    more: tuple[str, ...],
) -> None:
    def here(*words: str, statuses: Iterable[int] = (0,)) -> str:
        """The console of a command without Locust, in this process."""
        status = main(words)
        return fine(status, statuses, "".join(capsys.readouterr()))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("LOCUST_LLM_HEADERS", f"X-Team: {TEAM}")
    count = str(3 * len(ECHOES))
    said = {
        "run": run(
            "run", "--host", server.url, "--headless", "-u", str(1 + bool(more)), "--request-count",
            count,
            "-L", "DEBUG", "--report-dir", "run", "--csv", "stats", "--csv-full-history", "--html",
            "locust.html",
            "--logfile", "log", "--request-rate", "100", *more, statuses=(1,),
        ),
        "check": here("check", server.url, statuses=(0, 1)),
        "report": here("report", "run"),
        "figure": here("figure", "run", "-o", "drawn.svg"),
        "compare": here(
            "compare", "run", "run", "--markdown", "compared.md", "--json", "compared.json",
            "--html", "compared.html"
        ),
    }  # fmt: skip
    if more:
        said["probe"] = run(
            "probe", "--host", server.url, "--report-dir", "probed", statuses=range(9)
        )
    files = {str(path): path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    made = (
        "run.json",
        "profile_export.jsonl",
        "summary.md",
        "report.html",
        "timeline.svg",
        "server_metrics.jsonl",
    )
    others = {
        "locust.html",
        "log",
        "stats_failures.csv",
        "drawn.svg",
        "compared.md",
        "compared.json",
        "compared.html",
    }
    assert {f"run/{name}" for name in made} | others <= set(files)
    outcomes = {
        json.loads(line)["record"].get("outcome", "ok")
        for line in files["run/profile_export.jsonl"].splitlines()
    }
    assert outcomes >= {
        "ok",
        "http_status",
        "rate_limited",
        "unavailable",
        "stream_error",
        "malformed",
        "truncated",
    }
    assert files["run/profile_export.jsonl"].count(b"***") > 20
    assert json.loads(files["run/run.json"])["run"]["model"] == "tiny"
    for name, text in said.items():
        check(name, text)
    for name, data in files.items():
        if not name.endswith((".png", ".pdf")):
            check(name, data.decode("utf-8", "surrogateescape"))
            if name.endswith(".json") or name.endswith(".jsonl"):
                for line in data.splitlines() if name.endswith(".jsonl") else [data]:
                    check(
                        f"{name}, decoded",
                        json.dumps(json.loads(line), ensure_ascii=False)
                        .replace("\\n", "\n")
                        .replace("\\t", ""),
                    )
