"""docs/images: pages as headless Chromium shows them: the report of the shipped example, and a live
page, a sweep and a comparison of runs against the simulator.

compare.png is of runs on a real server, which are not kept: benchmarks/tools-on-one-server.md says
how it was made.

Beside them is made-of.json: what they show, so that a test finds images that are older than the pages.
"""

import hashlib
import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import sync_playwright

from locust_llm.demo_command import DEMO_SERVER, start_simulator
from locust_llm.report.render.html_report import STYLES
from locust_llm.report.render.inline_assets import CHART_SCRIPTS
from locust_llm.report.write_report_files import remake_reports

ROOT: Final = Path(__file__).parent.parent
STATIC: Final = ROOT / "locust_llm" / "static"
EXAMPLE: Final = ROOT / "reports" / "example"
IMAGES: Final = Path(__file__).with_name("images")
MADE_OF: Final = IMAGES / "made-of.json"
MAX_BYTES: Final = 300_000
SHOWN_AFTER_S: Final = 45
LOAD: Final = (
    "--request-rate", "6", "-s", "1", "--random-seed", "3", "--seq-dist",
    "200|40,100:70;8000|800,100:30",
)  # fmt: skip
"""The server is the demo's, which a prefill limit helps."""
LIVE: Final = (
    "--autostart", "--web-host", "127.0.0.1", "-t", "120s", *LOAD,
    "--prefill-concurrency", "3", "--prefill-concurrency-ramp-duration", "50",
    "--slo", "ttft_from_due p95 < 1.5s", "--slo", "longest_stall p95 < 500ms",
)  # fmt: skip
"""The limit rises from 1 to 2 after 25 s, and streams stop for longer from then on."""
SWEEP: Final = (
    "--headless", "--sweep", "concurrency=1,2,4,8,16", "--stage-duration", "12", "--random-seed", "7",
    "--synthetic-input-tokens-mean", "2000", "--output-tokens-mean", "60",
    "--slo", "ttft p95 < 900ms",
)  # fmt: skip
COMPARED: Final = ("--headless", "-t", "100s", *LOAD)
LIMIT: Final = ("--prefill-concurrency", "1")
CHART_SOURCES: Final = tuple(name for name in CHART_SCRIPTS if not name.startswith("uPlot"))
REPORT_SOURCES: Final = (*STYLES[1:], *CHART_SOURCES, "../report/templates/report.html")
LIVE_SOURCES: Final = (
    "live.html", "live.css", "pages.css", "plots.css", "live_charts.js", "live_side.js", *CHART_SOURCES,
)  # fmt: skip
"""The sources that decide how a page looks, below ``static``."""
COMMENT: Final = re.compile(r"/\*.*?\*/|(?<!\S)//[^\n]*", re.DOTALL)


# -- what the images show --------------------------------------------------------------------------


def describe_sources() -> dict[str, Any]:
    """The layout of both pages as hashes, and the words at the top of the example's report."""
    return {
        "report": hash_files(REPORT_SOURCES),
        "live": hash_files(LIVE_SOURCES),
        "words": read_top_of_report(render_example()),
    }


def hash_files(names: Sequence[str]) -> str:
    """Comments do not count: they change no page."""
    digest = hashlib.sha256()
    for name in names:
        source = (STATIC / name).resolve().read_text("utf-8")
        digest.update(COMMENT.sub("", source).encode())
    return digest.hexdigest()


def render_example() -> str:
    """The page that today's code makes of the shipped records."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "example"
        shutil.copytree(EXAMPLE, copy)
        remake_reports(copy)
        return (copy / "report.html").read_text("utf-8")


class HeaderReader(HTMLParser):
    """The words in the page's header."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = False
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = self.inside or tag == "header"

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag != "header"

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.words += data.split()


def read_top_of_report(page: str) -> str:
    reader = HeaderReader()
    reader.feed(page)
    return " ".join(reader.words)


# -- the pictures ----------------------------------------------------------------------------------


def main() -> int:
    chromium = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if chromium is None:
        print("needs Chromium: apt install chromium fonts-dejavu-core", file=sys.stderr)
        return 1
    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 980})
        example = folder / "example.html"
        example.write_text(render_example(), "utf-8")
        shoot_file(page, example, "report.png")
        shoot_live_page(page, folder)
        run_load(folder / "sweep", SWEEP)
        shoot_file(page, folder / "sweep" / "report.html", "sweep.png")
        run_load(folder / "no limit", COMPARED, DEMO_SERVER)
        run_load(folder / "limit 1", (*COMPARED, *LIMIT), DEMO_SERVER)
        both = [str(folder / "no limit"), str(folder / "limit 1")]
        run_command(["compare", *both, "--html", str(folder / "compare.html")])
        shoot_file(page, folder / "compare.html", "compare-runs.png")
        browser.close()
    MADE_OF.write_text(json.dumps(describe_sources(), indent=1) + "\n")
    too_large = [image.name for image in IMAGES.glob("*.png") if image.stat().st_size > MAX_BYTES]
    if too_large:
        print(f"larger than {MAX_BYTES} bytes: {', '.join(too_large)}", file=sys.stderr)
    return bool(too_large)


def shoot_file(page: Any, file: Path, image: str) -> None:
    page.goto(file.as_uri())
    page.wait_for_timeout(1000)
    page.screenshot(path=IMAGES / image)


def shoot_live_page(page: Any, folder: Path) -> None:
    port = _free_port()
    address = f"http://127.0.0.1:{port}/llm"
    with start_simulator(*DEMO_SERVER) as url:
        words = [
            "--host",
            url,
            "--web-port",
            str(port),
            *LIVE,
            "--report-dir",
            str(folder / "live"),
        ]
        with running(words, folder):
            _wait_for(address)
            page.goto(address)
            page.wait_for_timeout(SHOWN_AFTER_S * 1000)
            page.screenshot(path=IMAGES / "live.png")


@contextmanager
def running(words: Sequence[str], folder: Path) -> Iterator[None]:
    """A run that is ended after the block."""
    command = [sys.executable, "-m", "locust_llm", "run", *words]
    run = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        run.terminate()
        run.wait(60)


def run_load(report_dir: Path, words: Sequence[str], server: Sequence[str] = ()) -> None:
    """A whole run against a simulator of its own. A rule that fails is no error."""
    with start_simulator(*server) as url:
        run_command(["run", "--host", url, *words, "--report-dir", str(report_dir)])


def run_command(words: Sequence[str]) -> None:
    subprocess.run(
        [sys.executable, "-m", "locust_llm", *words], stdout=subprocess.DEVNULL, check=False
    )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _wait_for(url: str, timeout_s: float = 120) -> None:
    until = time.monotonic() + timeout_s
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
