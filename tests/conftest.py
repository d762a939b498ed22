"""Fixtures that several test files share, how many examples Hypothesis draws, and which tests stay
together."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest
from support import unpatched_locust  # noqa: F401  before anything of Locust, whichever file is run
from support.examples import register_profiles
from support.scripted import Scripted

register_profiles()
# pipelines set it, and it changes what an INCONCLUSIVE rule does
os.environ.pop("CI", None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file is run by one worker of pytest-xdist, so that its fixtures are made once; whole runs
    go where there is room."""
    for item in items:
        if "e2e" not in item.path.parts:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Tell gevent's loop the time: a timeout of ``joinall`` counts from when the loop last turned,
    which may be minutes ago."""
    gevent.get_hub().loop.update_now()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for localhost and 127.0.0.1 with its key, in one file."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    key = path.with_name("key.pem")
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost "
        f"-addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout {key} -out {path}"
    )
    try:
        subprocess.run(command.split(), check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs the openssl command to make a certificate")
    path.write_bytes(path.read_bytes() + key.read_bytes())
    return path


@pytest.fixture(scope="session")
def scripted() -> Iterator[Scripted]:
    """The scripted server, in a process of its own."""
    server = Scripted()
    yield server
    server.close()


@pytest.fixture(scope="session")
def scripted_tls(certificate: Path) -> Iterator[Scripted]:
    """One that also speaks TLS."""
    server = Scripted(str(certificate))
    yield server
    server.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium without a window, by Playwright: a context of it is a fresh browser. One a file:
    while it is there an event loop of asyncio runs in this thread, so that other tests could not
    run theirs."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    chromium = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if chromium is None:
        pytest.skip("needs Chromium: apt install chromium")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()
