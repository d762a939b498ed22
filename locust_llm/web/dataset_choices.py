"""Dataset choices: the files that the form of a new run offers: the command line's, a folder's on
this machine, or an upload.

The form names a dataset by a choice, never by a path: ``given``, ``file:`` with a listed name, or
``upload:`` with a token.
"""

import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final
from weakref import finalize

from locust_llm.settings.run_refusal import refuse_run

from .dataset_head import explain_no_dataset

MAX_UPLOAD_BYTES: Final = 100 << 20
UPLOAD_S: Final = 300.0
"""An upload that takes longer is given up."""
SUFFIXES: Final = (".jsonl", ".json", ".csv", ".tsv", ".log", ".jsonl.gz", ".json.gz", ".csv.gz")
"""The endings of a folder's files. Not .txt, as a key is often kept in such a file."""
MAX_LISTED: Final = 200
MAX_DEPTH: Final = 3
MAX_VISITED: Final = 5000
"""The most entries of folders, as the page waits for the list."""
NOT_SEARCHED: Final = ("node_modules", "site-packages", "__pycache__")
GIVEN, FILE, UPLOAD = "given", "file:", "upload:"
NO_SUCH: Final = "the dataset no longer exists: choose another"
_NAME: Final = re.compile(r"[^A-Za-z0-9._-]+")


class Datasets:
    """The datasets of one process. ``given`` is the command line's path. ``folder`` has the offered
    files, also in its folders; None: none are offered."""

    def __init__(self, given: str | None, folder: Path | None) -> None:
        self.given, self.folder = given, folder
        self._uploads: str | None = None
        """A folder that only this user can read."""
        self._remove_all: Callable[[], object] = lambda: None
        """Removes the folder with its content, at the latest when the process ends."""
        self._token = ""
        self._uploaded = Path()
        """The latest upload. There is one at a time."""

    def choices(self) -> list[tuple[str, str]]:
        """(choice, name) of each dataset."""
        given = (
            [(GIVEN, f"{os.path.basename(self.given)}, from the command line")]
            if self.given
            else []
        )
        uploaded = (
            [(UPLOAD + self._token, f"{self._uploaded.name}, uploaded")] if self._token else []
        )
        return given + uploaded + [(FILE + name, name) for name in self._listed()]

    def choice_of(self, path: str | None) -> str:
        """The choice that leads to a path. Empty: none does."""
        if path and path == self.given:
            return GIVEN
        if path and self._token and path == str(self._uploaded):
            return UPLOAD + self._token
        return next(
            (FILE + name for name, there in self._listed().items() if str(there) == path), ""
        )

    def path(self, choice: str) -> str | None:
        """The path of a choice from outside. None: it is no dataset. Raises Refused."""
        if not choice:
            return None
        if choice == GIVEN and self.given:
            return self.given
        if self._token and secrets.compare_digest(choice.encode(), (UPLOAD + self._token).encode()):
            return str(self._uploaded)
        listed = self._listed()
        if choice.startswith(FILE) and (name := choice.removeprefix(FILE)) in listed:
            return str(listed[name])
        refuse_run(NO_SUCH)

    def keep(self, name: str, blocks: Iterable[bytes]) -> str:
        """Keep an upload in place of the last one. Returns its choice.

        Raises Refused where it is too large, OSError, and what ``blocks`` raises. Then nothing of
        it is left.
        """
        if self._uploads is None:
            self._uploads = tempfile.mkdtemp(prefix="locust-llm-")  # mode 0700
            self._remove_all = finalize(self, shutil.rmtree, self._uploads, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(dir=self._uploads))
        path = folder / sanitise_file_name(name)
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                size = 0
                for block in blocks:
                    if (size := size + len(block)) > MAX_UPLOAD_BYTES:
                        refuse_run(describe_size_limit())
                    file.write(block)
            if not size:
                refuse_run("the file is empty")
            if wrong := explain_no_dataset(path):
                refuse_run(f"{path.name} is not a dataset: {wrong}")
        except BaseException:
            _remove(path)
            raise
        if self._token:
            _remove(self._uploaded)
        self._token = secrets.token_urlsafe(16)
        self._uploaded = path
        return UPLOAD + self._token

    def close(self) -> None:
        """Remove the upload."""
        self._token, self._uploads = "", None
        self._remove_all()

    def _listed(self) -> dict[str, Path]:
        """The files by their names below the folder, at most MAX_LISTED."""
        if self.folder is None:
            return {}
        files_below = dict(_below(self.folder))
        return {name: files_below[name] for name in sorted(files_below)[:MAX_LISTED]}


def describe_size_limit() -> str:
    return (
        f"a dataset of at most {MAX_UPLOAD_BYTES >> 20} MB can be uploaded: use --input-file for "
        "larger ones"
    )


def sanitise_file_name(name: str) -> str:
    """A name from outside as letters, digits, dots and dashes of its end, without a path."""
    clean_name = _NAME.sub("-", re.split(r"[/\\]", name)[-1])[-80:].lstrip(".-")
    return clean_name or "dataset"


def _below(folder: Path) -> Iterator[tuple[str, Path]]:
    """(name, path) of possible datasets: regular files, neither hidden nor behind a link, and
    outside of run folders."""
    visited = 0
    for place, folders, files in os.walk(folder):
        here = Path(place)
        depth = len(here.relative_to(folder).parts)
        visited += len(folders) + len(files)
        if visited > MAX_VISITED:
            return
        if "run.json" in files:
            folders.clear()
            continue
        folders[:] = sorted(
            name
            for name in folders
            if depth < MAX_DEPTH and not name.startswith(".") and name not in NOT_SEARCHED
        )
        for file in files:
            path = here / file
            if (
                file.startswith(".")
                or not file.lower().endswith(SUFFIXES)
                or path.is_symlink()
                or not path.is_file()
            ):
                continue
            name = path.relative_to(folder).as_posix()
            # a name that is no UTF-8 is not printable
            if name.isprintable() and _can_be_dataset(path):
                yield name, path


def _can_be_dataset(path: Path) -> bool:
    try:
        return not explain_no_dataset(path)
    except OSError:
        return False


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.parent.rmdir()
