"""Buffered file: no line is lost, doubled or torn, whatever the disk does."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.files import buffered_file as module
from locust_llm.files.buffered_file import AT_ONCE_BYTES, BufferedFile


def test_lines_reach_the_file_with_a_flush_and_are_appended(tmp_path: Path) -> None:
    path = tmp_path / "records"
    path.write_bytes(b"old\n")
    spool = BufferedFile(path)
    spool.write(b"a")
    spool.write(b"b")
    assert (path.read_bytes(), spool.waiting) == (b"old\n", 2)
    assert spool.flush()
    assert (path.read_bytes(), spool.waiting) == (b"old\na\nb\n", 0)
    spool.write(b"c")
    spool.close()
    spool.close()
    assert (path.read_bytes(), spool.closed) == (b"old\na\nb\nc\n", True)


def test_much_is_written_at_once(tmp_path: Path) -> None:
    spool = BufferedFile(tmp_path / "records")
    for _ in range(100):
        spool.write(b"x" * 1000)
    assert os.path.getsize(spool.path) >= AT_ONCE_BYTES
    spool.close()


class Disk:
    """Takes so many bytes of each write as it is told; 0: it is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *takes: int) -> None:
        self.takes, self.content, self.tries = list(takes), b"", 0
        monkeypatch.setattr(module.os, "write", self.write)

    def write(self, file: int, data: Any) -> int:
        self.tries += 1
        take = self.takes.pop(0) if self.takes else len(data)
        if not take:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.content += bytes(data[:take])
        return min(take, len(data))


def test_a_full_disk_loses_nothing_and_a_torn_line_is_made_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch, 4, 0, 0)
    spool = BufferedFile(tmp_path / "records")
    for line in (b"one", b"two", b"three"):
        spool.write(line)
    assert not spool.flush()
    assert (disk.content, spool.waiting, spool.error) == (b"one\n", 2, "No space left on device")
    assert not spool.flush()
    assert spool.flush()
    assert (disk.content, spool.waiting, spool.error) == (b"one\ntwo\nthree\n", 0, "")


@given(
    st.lists(st.binary(max_size=5).filter(lambda line: b"\n" not in line), max_size=8),
    st.lists(st.integers(0, 4)),
)
def test_whatever_the_disk_takes_it_gets_each_line_once(
    lines: list[bytes], takes: list[int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch, *takes)
        spool = BufferedFile(Path(os.devnull))
        for line in lines:
            spool.write(line)
            spool.flush()
        while spool.waiting:
            spool.flush()
        assert disk.content == b"".join(line + b"\n" for line in lines)
        spool.close()


def test_a_full_disk_is_not_tried_at_every_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = BufferedFile(tmp_path / "records")
    disk = Disk(monkeypatch, *[0] * 10_000)
    for _ in range(5 * AT_ONCE_BYTES // 1024):
        spool.write(b"x" * 1023)
    assert disk.tries == 5
    assert spool.waiting == 5 * AT_ONCE_BYTES // 1024


def test_what_is_left_goes_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = BufferedFile(tmp_path / "records")
    disk = Disk(monkeypatch, 6, 0, 0)
    spool.write(b"one")
    spool.write(b"two")
    spool.close()
    rest = spool.rescue()
    try:
        assert disk.content + rest.read_bytes() == b"one\ntwo\n"
    finally:
        rest.unlink()


def test_a_real_full_disk() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("this machine has no /dev/full")
    spool = BufferedFile(Path("/dev/full"))
    spool.write(b"a")
    assert not spool.flush()
    assert (spool.error, spool.waiting) == ("No space left on device", 1)
    spool.close()


def test_a_folder_that_cannot_be_written_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        BufferedFile(tmp_path / "none" / "records")
