"""Files: what is no regular file is refused at once, whatever it is, and a regular one is read
within its bound."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from locust_llm.files import regular_file
from locust_llm.files.regular_file import open_regular, open_to_append, read_regular


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


def a_sparse_file(path: Path) -> None:
    path.touch()
    os.truncate(path, 10 << 30)


IRREGULAR: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (os.mkfifo, "file is a pipe: use a regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"),
        "file is a device: use a regular file"),
    "socket": (a_socket, "file is a socket: use a regular file"),
    "folder": (Path.mkdir, "Is a directory"),
    "loop": (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
    "sparse": (a_sparse_file, "file is a sparse file: most of it is empty"),
    "nothing": (lambda path: None, "No such file or directory"),
}  # fmt: skip


@pytest.mark.parametrize("kind", IRREGULAR)
def test_what_is_no_regular_file_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    make, why = IRREGULAR[kind]
    make(path := tmp_path / "file")
    for read in (open_regular, lambda path: read_regular(path, 2**60)):
        with pytest.raises(OSError) as refused:  # noqa: PT011
            read(path)
        assert refused.value.strerror == why


@pytest.mark.parametrize("kind", ["pipe", "socket", "folder"])
def test_nothing_is_appended_to_what_is_no_regular_file(kind: str, tmp_path: Path) -> None:
    make, why = IRREGULAR[kind]
    make(path := tmp_path / "file")
    with pytest.raises(OSError) as refused:  # noqa: PT011
        open_to_append(path)
    assert refused.value.strerror == why


def test_a_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_regular(path, 5) == b"12345"
    with pytest.raises(OSError, match="file is larger than 0 MB"):
        read_regular(path, 4)


def test_a_file_with_a_few_holes_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that lost its power may leave them: half of the file, and no more."""
    monkeypatch.setattr(regular_file, "MAX_HOLE_BYTES", 1 << 20)
    path = tmp_path / "file"
    path.write_bytes(b"x" * (4 << 20))
    os.truncate(path, 8 << 20)
    assert len(read_regular(path, 1 << 30)) == 8 << 20
    os.truncate(path, 9 << 20)
    with pytest.raises(OSError, match="sparse"):
        read_regular(path, 1 << 30)
