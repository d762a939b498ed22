"""The site of the documentation, as `make docs` builds it: readable by everybody."""

import functools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
from support.axe import violations

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = ("", "how-to/live/", "how-to/sweeps/", "reference/metrics/", "reference/reports/")


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("material", reason="needs the packages of the docs: make docs")
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT, check=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    handler = functools.partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_the_site(browser: Any, site: str, scheme: str) -> None:
    """Contrast, names, and regions that scroll: in both palettes."""
    context = browser.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 900})
    page = context.new_page()
    found = {}
    for path in PAGES:
        page.goto(f"{site}/{path}", wait_until="load")
        page.locator(".md-typeset h1").wait_for()
        page.wait_for_timeout(300)
        if violated := violations(page):
            found[path] = violated
    context.close()
    assert found == {}
