"""docs/images: the live page of a run against the simulator, and the example report, as headless
Chromium shows them.

compare.png is of runs on a real server, which are not kept: benchmarks/tools-on-one-server.md says
how it was made.
"""

import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Final

from playwright.sync_api import sync_playwright

from locust_llm.demo_command import start_simulator

ROOT: Final = Path(__file__).parent.parent
IMAGES: Final = Path(__file__).with_name("images")
MAX_BYTES: Final = 300_000
SHOWN_AFTER_S: Final = 45
RUN: Final = (
    "--autostart", "--web-host", "127.0.0.1", "-u", "40", "-t", "120s", "-s", "1",
    "--prefill-concurrency", "4", "--prefill-concurrency-ramp-duration", "25",
    "--seq-dist", "500|100,150:70;uniform:6000..14000,150:30",
    "--slo", "ttft p95 < 3s", "--slo", "itl p95 < 100ms", "--slo", "error_rate < 1%",
)  # fmt: skip


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
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 980})
        page.goto((ROOT / "reports/example/report.html").as_uri())
        page.wait_for_timeout(1000)
        page.screenshot(path=IMAGES / "report.png")
        with start_simulator() as url, tempfile.TemporaryDirectory() as folder:
            port = _free_port()
            command = [
                sys.executable,
                "-m",
                "locust_llm",
                "run",
                "--host",
                url,
                "--web-port",
                str(port),
                *RUN,
            ]
            run = subprocess.Popen(
                [*command, "--report-dir", f"{folder}/live"], cwd=folder, stdout=subprocess.DEVNULL
            )
            try:
                _wait_for(f"http://127.0.0.1:{port}/llm")
                page.goto(f"http://127.0.0.1:{port}/llm")
                page.wait_for_timeout(SHOWN_AFTER_S * 1000)
                page.screenshot(path=IMAGES / "live.png")
            finally:
                run.terminate()
                run.wait(60)
        browser.close()
    too_large = [image.name for image in IMAGES.glob("*.png") if image.stat().st_size > MAX_BYTES]
    if too_large:
        print(f"larger than {MAX_BYTES} bytes: {', '.join(too_large)}", file=sys.stderr)
    return bool(too_large)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _wait_for(url: str, timeout_s: float = 30) -> None:
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
