"""Upload: the folder of a run in a store, file by file; a real S3 protocol, that of moto's
server."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import fsspec
import pytest
from moto.server import ThreadedMotoServer

from locust_llm.__main__ import main
from locust_llm.exit_status import ExitStatus
from locust_llm.integrations.upload import copy_folder, explain_upload_refusal, upload_run

FILES: Final = {
    "run.json": b"{}",
    "report.html": b"<p>\xff",
    "stages/1/run.json": b"[]",
    "empty": b"",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (path := tmp_path / "nightly" / name).parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "nightly"


def held(url: str) -> dict[str, bytes]:
    """All files below a URL."""
    system, place = fsspec.core.url_to_fs(url)
    return {
        name.removeprefix(place).lstrip("/"): system.cat_file(name) for name in system.find(place)
    }


@pytest.mark.parametrize("store", ["memory://bucket/runs", "file://{}/runs"])
def test_all_files_are_copied_and_none_is_overwritten(
    store: str, folder: Path, tmp_path: Path
) -> None:
    url = store.format(tmp_path / "store")
    for name in ("nightly", "nightly-2", "nightly-3"):
        where = copy_folder(folder, url + "/" * (name == "nightly-2"))
        assert where.endswith(f"/runs/{name}")
        assert held(where) == FILES


def test_a_link_is_not_followed_out_of_the_folder(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("of another")
    (folder / "notes").symlink_to(outside / "secret")
    (folder / "stages" / "2").symlink_to(outside)
    os.mkfifo(folder / "pipe")
    assert held(copy_folder(folder, f"file://{tmp_path}/store")) == FILES


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    settings = {
        "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
    }  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    fsspec.filesystem("s3", skip_instance_cache=True).mkdir("s3://load-tests")
    yield "s3://load-tests/nightly"
    server.stop()


@pytest.mark.slow
def test_a_bucket_that_is_not_there_changes_no_status_and_the_folder_can_be_copied_later(
    s3: str, tmp_path: Path
) -> None:
    one = tmp_path / "one"
    words = [
        "demo",
        "-t",
        "3s",
        "-u",
        "5",
        "--synthetic-input-tokens-mean",
        "100",
        "--report-dir",
        str(one),
    ]
    command = [sys.executable, "-m", "locust_llm", *words, "--upload", "s3://misspelled/nightly"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=dict(os.environ), timeout=120
    )
    assert done.returncode == ExitStatus.OK, done.stderr
    assert (
        "NOT UPLOADED: s3://misspelled/nightly: FileNotFoundError: The specified bucket does not "
        "exist" in done.stdout
    )
    assert upload_run(one, s3) == f"uploaded: {s3}/one"
    assert held(s3 + "/one") == {
        str(path.relative_to(one)): path.read_bytes() for path in one.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("bucket/prefix", "--upload needs a URL such as s3://bucket/prefix, got 'bucket/prefix'"),
        ("s3://", "--upload needs a URL such as"),
        ("s3://key:secret@bucket", "--upload must not contain a user name or password in the URL"),
        ("nothing://bucket", "--upload nothing://bucket: fsspec does not support nothing://"),
        ("s3://bucket", ""),
    ],
)
def test_what_can_be_no_store_is_refused_before_the_load(url: str, why: str) -> None:
    assert explain_upload_refusal(url).startswith(why)
    assert bool(explain_upload_refusal(url)) is bool(why)
    assert "secret" not in explain_upload_refusal(url)


def test_by_hand(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["upload", str(folder), f"file://{tmp_path}/store"]) == ExitStatus.OK
    assert capsys.readouterr().out == f"uploaded: file://{tmp_path}/store/nightly\n"
    assert main(["upload", str(tmp_path / "none"), "memory://x"]) == ExitStatus.REFUSED
    (tmp_path / "full").write_text("")  # a file, where a folder would have to be
    assert main(["upload", str(folder), f"file://{tmp_path}/full"]) == ExitStatus.INCOMPLETE
    assert "locust-llm: error: file://" in capsys.readouterr().err
