"""Upload: copies the folder of a run to a store (S3, GCS, Azure, a file system) through fsspec, in
a process of its own.

A run's process is gevent's. A store's client has its own thread and event loop and would not work
there. The client finds its credentials, such as ``AWS_ACCESS_KEY_ID``, in the environment.
"""

import argparse
import os
import stat
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from locust_llm.exit_status import ERROR_PREFIX, ExitStatus
from locust_llm.files.regular_file import open_regular
from locust_llm.text.hide_secrets import find_secret_fields

PATIENCE_S: Final = 600.0
"""An upload that takes longer hangs."""
TRIES_OF_NAMES: Final = 10_000


def explain_upload_refusal(url: str) -> str:
    """Why nothing can be copied there, before anything is sent. Empty: it may be possible."""
    scheme, address, rest = url.partition("://")
    if not address or not rest.strip("/"):
        return f"--upload needs a URL such as s3://bucket/prefix, got {url!r}"
    if names := find_secret_fields(url):
        return (
            f"--upload must not contain a key in the URL ({names[0]}): the storage client reads "
            "keys from the environment"
        )
    if "@" in rest.partition("/")[0]:
        return (
            "--upload must not contain a user name or password in the URL: the storage client "
            "reads them from the environment"
        )
    missing = "fsspec" if find_spec("fsspec") is None else ""
    if not missing:
        from fsspec.registry import known_implementations

        if scheme not in known_implementations:
            return f"--upload {url}: fsspec does not support {scheme}://"
        # not imported: it would weigh on the run
        package = known_implementations[scheme]["class"].partition(".")[0]
        missing = package if find_spec(package) is None else ""
    return (
        f"--upload {url} needs {missing}: pip install 'locust-llm[upload]' installs the packages "
        "for S3"
        if missing
        else ""
    )


def validate_upload(settings: object, options: argparse.Namespace) -> Iterator[str]:
    """Why a run could not be uploaded, for the process that has its report."""
    if options.upload and not options.worker and (why := explain_upload_refusal(options.upload)):
        yield why


def copy_folder(folder: Path, url: str) -> str:
    """Copy all files below ``folder`` to a new folder of its name below ``url``, or ``-2`` and so
    on. Returns the new address.

    A link is left out, as it may lead to any file of this machine. Raises whatever the store's
    client raises, as there is no common base.
    """
    import fsspec

    # file by file: with whole folders fsspec makes a bucket that is not there, of a name that was
    # misspelled
    system, place = fsspec.core.url_to_fs(
        url.rstrip("/"), **({"auto_mkdir": True} if url.startswith("file:") else {})
    )
    target = _free(system, f"{place}/{folder.resolve().name}")
    for path in sorted(list_files_below(folder)):
        system.put_file(str(path), f"{target}/{path.relative_to(folder)}")
    return str(system.unstrip_protocol(target))


def list_files_below(folder: Path) -> Iterator[Path]:
    """Regular files that are reached without a link. Raises OSError for an unreadable one."""
    for place, _, names in os.walk(folder):
        for path in (Path(place, name) for name in names):
            if stat.S_ISREG(path.lstat().st_mode):
                open_regular(path).close()
                yield path


def explain_unreadable_folder(folder: Path) -> str:
    """Why a folder cannot be copied. Empty: it can."""
    if not folder.is_dir():
        return f"the folder {folder} does not exist"
    try:
        deque(list_files_below(folder), maxlen=0)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return ""


def _free(system: Any, target: str) -> str:
    """A name that holds nothing, as two runs of a Job have the same name."""
    for number in range(1, TRIES_OF_NAMES):
        name = target if number == 1 else f"{target}-{number}"
        if not system.exists(name):
            return name
    raise FileExistsError(f"{target} and thousands of others are there")


def upload_run(folder: Path, url: str) -> str:
    """A line for the console: where the copy of a run's folder is, or why there is none. The
    copying process has ended then."""
    command = [sys.executable, "-m", "locust_llm", "upload", str(folder), url]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=PATIENCE_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"NOT UPLOADED: {error}; the report is in {folder}"
    if done.returncode == ExitStatus.OK:
        return done.stdout.strip()
    why = done.stderr.strip().rpartition("\n")[2].removeprefix(ERROR_PREFIX)
    return f"NOT UPLOADED: {why or f'exit status {done.returncode}'}; the report is in {folder}"
