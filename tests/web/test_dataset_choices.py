"""Datasets: a choice of the form leads to what was offered, and to no other; an upload is bounded,
private and removed."""

import gzip
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import unpatched_locust  # noqa: F401  before the rest
from support.tiny_server import TinyServer, tiny_server
from support.web_pages import Page

from locust_llm.settings.run_refusal import RunRefused
from locust_llm.web import dataset_choices as module
from locust_llm.web.dataset_choices import GIVEN, NO_SUCH, Datasets, sanitise_file_name

ROW = b'{"prompt": "Hello"}\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three datasets, and what is none."""
    here = tmp_path / "here"
    for name in ("a.jsonl", "b/c.CSV", "b/d/deep.json.gz", ".hidden.json", ".git/x.json", "key.txt",
                 "run/run.json", "run/x.jsonl", "1/2/3/4/too.json", "node_modules/x.json"):  # fmt: skip
        path = here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(ROW)
    (tmp_path / "secret.json").write_bytes(ROW)
    (here / "link.json").symlink_to(tmp_path / "secret.json")
    (here / "up").symlink_to(tmp_path)
    return here


@pytest.fixture
def datasets(folder: Path) -> Iterator[Datasets]:
    datasets = Datasets("/elsewhere/given.jsonl", folder)
    yield datasets
    datasets.close()


@pytest.fixture
def server() -> Iterator[TinyServer]:
    with tiny_server() as server:
        yield server


def test_what_is_offered_is_below_the_folder_and_no_link(datasets: Datasets, folder: Path) -> None:
    assert datasets.choices() == [
        (GIVEN, "given.jsonl, from the command line"),
        *((f"file:{name}", name) for name in ("a.jsonl", "b/c.CSV", "b/d/deep.json.gz")),
    ]
    assert datasets.path("file:b/c.CSV") == str(folder / "b/c.CSV")
    assert datasets.path(GIVEN) == "/elsewhere/given.jsonl"
    assert datasets.path("") is None
    for choice in ("", GIVEN, "file:a.jsonl"):
        assert datasets.choice_of(datasets.path(choice)) == choice


@pytest.mark.parametrize(
    "choice",
    ["file:../secret.json", "file:link.json", "file:up/secret.json", "file:.hidden.json",
        "file:key.txt",
     "file:b/../a.jsonl", "file:/etc/passwd", "/etc/passwd", "a.jsonl", "upload:", "upload:x",
     "file:", "\udc80", "x\0y"],
)  # fmt: skip
def test_nothing_else_can_be_chosen(choice: str, datasets: Datasets) -> None:
    with pytest.raises(RunRefused, match=NO_SUCH):
        datasets.path(choice)


def test_without_a_folder_nothing_of_this_machine_is_offered() -> None:
    nothing = Datasets(None, None)
    assert nothing.choices() == []
    for choice in (GIVEN, "file:a.jsonl"):
        with pytest.raises(RunRefused):
            nothing.path(choice)


LOG = "[2026-11-25 16:24:01,123] INFO/locust: a simulator, started\n"
NO_DATASETS = {
    "page.jsonl": "<html><body>not found</body></html>\n",
    "sim.log": "listening on 127.0.0.1:8000, 4 slots\nPOST /v1/chat/completions, 200\n",
    "loc.log": LOG * 2,
    "times.log": LOG.replace("[", "") * 2,
    "package.json": '{\n "name": "x",\n "version": 1\n}\n',
    "list.json": "[1, 2, 3]",
    "words.jsonl": '{"level": "info", "msg": "a"}\n',
    "broken.jsonl": '{"prompt": "Hel\n',
    "latin.csv": b"a,b\n\xe4,1\n",
    "one.csv": "prompt\nHello\n",
    "half.json.gz": gzip.compress(ROW * 99)[:30],
}
CAN_BE = {
    "openai.jsonl": ROW,
    "list.json": b"[\n " + ROW + b"]",
    "pretty.json": b'{\n "prompt": "Hello"\n}',
    "packed.jsonl.gz": gzip.compress(ROW),
    "long.jsonl": b'{"prompt": "' + b"a" * 99_999 + b'"}\n',
    "azure.csv": b"TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,3162,35\n",
    "own.tsv": b"when\tprompt tokens\n1\t2\n",
    "own.log": b'{"ts": 1.5, "level": "info", "in": 3, "out": 4}\n',
    "bom.jsonl": b"\xef\xbb\xbf" + ROW,
}


def test_a_file_that_is_no_dataset_is_not_offered(tmp_path: Path) -> None:
    for name, content in (NO_DATASETS | CAN_BE).items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    (tmp_path / "list.json").write_bytes(CAN_BE["list.json"])
    offered = [name for _, name in Datasets(None, tmp_path).choices()]
    assert offered == sorted(CAN_BE)


@pytest.mark.parametrize("name", NO_DATASETS)
def test_an_upload_that_is_no_dataset_is_refused(name: str, datasets: Datasets) -> None:
    content = NO_DATASETS[name]
    kept = datasets.keep("x.jsonl", [ROW])
    with pytest.raises(RunRefused, match=f"^{name} is not a dataset: it"):
        datasets.keep(name, [content if isinstance(content, bytes) else content.encode()])
    assert datasets.path(kept)


def test_a_long_list_is_cut(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LISTED", 2)
    assert [name for _, name in Datasets(None, folder).choices()] == ["a.jsonl", "b/c.CSV"]


@pytest.mark.parametrize(
    ("name", "kept"),
    [("My prompts.jsonl", "My-prompts.jsonl"), ("../../etc/passwd", "passwd"),
        ("C:\\x\\y.csv", "y.csv"),
     (".bashrc", "bashrc"), ("<b>\n", "b-"), ("", "dataset"), ("...", "dataset"),
     ("x" * 500 + ".csv", "x" * 76 + ".csv")],
)  # fmt: skip
def test_a_name_from_outside_is_no_path(name: str, kept: str) -> None:
    assert sanitise_file_name(name) == kept


def test_an_upload_is_private_and_replaces_the_last_one(datasets: Datasets) -> None:
    first = datasets.keep("x.jsonl", [ROW, ROW])
    path = Path(datasets.path(first) or "")
    assert (path.name, path.read_bytes()) == ("x.jsonl", ROW * 2)
    assert [
        stat.S_IMODE(one.stat().st_mode) for one in (path, path.parent, path.parent.parent)
    ] == [
        0o600,
        0o700,
        0o700,
    ]
    second = datasets.keep("y.jsonl", [ROW])
    assert not path.parent.exists()
    with pytest.raises(RunRefused, match=NO_SUCH):
        datasets.path(first)
    assert (second, "y.jsonl, uploaded") in datasets.choices()
    there = Path(datasets.path(second) or "")
    datasets.close()
    assert not there.parent.parent.exists()


def test_of_a_refused_upload_nothing_is_left_and_the_last_one_stays(
    datasets: Datasets, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = datasets.keep("x.jsonl", [ROW])
    path = Path(datasets.path(kept) or "")
    monkeypatch.setattr(module, "MAX_UPLOAD_BYTES", 2 * len(ROW))

    def broken() -> Iterator[bytes]:
        yield ROW
        raise ConnectionError

    for blocks, error in (([ROW] * 3, RunRefused), ([], RunRefused), (broken(), ConnectionError)):
        with pytest.raises(error):
            datasets.keep("y.jsonl", blocks)
    assert list(path.parent.parent.iterdir()) == [path.parent]
    assert datasets.path(kept) == str(path)


# -- the page --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_upload_is_the_dataset_of_the_next_run(
    pages: Callable[..., Page], server: TinyServer
) -> None:
    page = pages("--host", server.url)
    answer = page.client.post("/llm/datasets?name=../mine.jsonl", data=ROW).get_json()
    assert (answer["done"], answer["name"]) == (True, "mine.jsonl")
    assert (
        f'<option value="{answer["choice"]}">mine.jsonl, uploaded</option>'
        in page.client.get("/llm/new").text
    )
    assert page.start({"dataset": answer["choice"]})["success"]
    assert Path(page.options.input_file).read_bytes() == ROW
    assert "dataset" not in page.asked[0]
    assert page.start({"dataset": ""})["success"]
    assert page.options.input_file is None
    assert page.start({"dataset": "file:../x"})["message"] == NO_SUCH
    (Path.cwd() / "later.jsonl").write_bytes(ROW)
    assert '<option value="file:later.jsonl">' in page.client.get("/llm/new").text


@pytest.mark.slow
def test_files_of_this_machine_are_not_offered_to_others(
    pages: Callable[..., Page], folder: Path
) -> None:
    (Path.cwd() / "private.jsonl").write_bytes(ROW)
    assert "private.jsonl" not in pages("--web-host", "").client.get("/llm/new").text
    declared = pages("--web-host", "", "--web-datasets", str(folder)).client.get("/llm/new").text
    assert "private.jsonl" not in declared
    assert '<option value="file:a.jsonl">' in declared


def test_an_upload_is_refused_where_it_is_too_large_or_a_run_is_on(
    pages: Callable[..., Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = pages()
    monkeypatch.setattr("locust_llm.web.dataset_choices.MAX_UPLOAD_BYTES", 10)
    answer = page.client.post("/llm/datasets?name=x", data=ROW)
    assert (answer.status_code, "--input-file" in answer.text) == (413, True)
    monkeypatch.undo()
    page.view.starting = True
    answer = page.client.post("/llm/datasets?name=x", data=ROW)
    assert (answer.status_code, answer.get_json()["message"]) == (
        422,
        "a run is active: upload the file after its end",
    )
    assert page.client.get("/llm/datasets?name=x").status_code == 405
