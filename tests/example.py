"""`make example`: the report in reports/example, of an open loop with a ramping gate against the
simulator."""

import shutil
import subprocess
import sys
from pathlib import Path

from locust_llm.demo_command import start_simulator

FOLDER = Path("reports/example")
WORDS = (
    "--headless", "-t", "120s", "--request-rate", "2.5", "--warmup-duration", "5",
    "--warmup-request-rate", "1",
    "--prefill-concurrency", "3", "--prefill-concurrency-ramp-duration", "20",
    "--seq-dist", "200|40,120:60;uniform:4000..16000,60:40", "--random-seed", "7",
    "--slo", "ttft p95 < 3s", "--slo", "itl p95 < 100ms", "--slo", "error_rate < 3%", "--slo",
    "delivered >= 95%",
    "--slo", "attainment >= 80% given ttft < 2s and itl < 60ms", "--slo",
    "warn: longest_stall p90 < 500ms",
    "--report-dir", str(FOLDER),
)  # fmt: skip

if __name__ == "__main__":
    shutil.rmtree(FOLDER, ignore_errors=True)
    with start_simulator() as url:
        done = subprocess.run(
            [sys.executable, "-m", "locust_llm", "run", "--host", url, *WORDS], check=False
        )
    # a rule that fails is part of the example
    sys.exit(done.returncode if done.returncode not in (3, 4) else 0)
