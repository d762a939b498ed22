"""Flame graph: samples a run of 200 streams, and draws where its CPU goes: ``make flame-graph``.

perf counts the CPU of each thread of one run, and resolves the kernel's part of the reader thread.
py-spy resolves the Python code of the event loop and of the report process in a second run, which
it does not stop: a load generator that is stopped 100 times a second reads late. Each thread is as
wide as perf counted.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

from bench import GAP_MS, TOKENS, TTFT_MS
from truth import build, server

Stacks = Counter[tuple[str, ...]]
"""Each stack, from the outermost frame to the innermost, has its number of samples."""

STREAMS: Final = 200
SECONDS: Final = 40
PERF_HZ: Final = 199
EVENT_LOOP: Final = "event loop"
READER: Final = "reader thread, in C"
REPORT: Final = "report process"
TOOLS: Final = {
    "perf": f"perf record -q -e cpu-clock -F {PERF_HZ} -g -o {{out}} --",
    "py-spy": "py-spy record -f raw --nonblocking -t -s -r 200 -o {out} --",
}
HIDDEN: Final = re.compile(r"^0x|importlib|^<frozen |^\[unknown\]|^locust(_llm)?\.__main__:")
"""Frames that say nothing: addresses, the machinery of imports, the program's first lines."""
PY_SPY_FRAME: Final = re.compile(r"(?P<name>.+) \((?P<file>[^()]*?)(?::\d+)?\)$")

WIDTH: Final = 1000
ROW: Final = 17
TOP: Final = 66
LEAST_SHARE: Final = 0.003
LETTER: Final = 6.7
"""A letter is about so many pixels wide."""
STYLE: Final = (
    "text{font:11px ui-monospace,monospace;fill:#1f2328;pointer-events:none}"
    ".head{font:600 14px system-ui,sans-serif}.small{font:12px system-ui,sans-serif}"
    "rect{stroke:#fff;stroke-width:.6}"
    ".thread{fill:#d0d7de}.ours{fill:#8fd3c7}.other{fill:#f5d08a}"
    "@media(prefers-color-scheme:dark){svg{background:#0d1117}text{fill:#e6edf3}"
    "rect{stroke:#0d1117}.thread{fill:#3d444d}.ours{fill:#0f6b5f}.other{fill:#6b5015}}"
)


class Frame(NamedTuple):
    name: str
    depth: int
    left: float
    share: float
    """``left`` and ``share`` are parts of all samples."""


def run_under(tool: str, tree: Path, folder: Path) -> str:
    """Runs the load generator of ``tree`` with its own Python, and returns the tool's text."""
    program = build(folder)
    if program is None:
        sys.exit("no C compiler (cc): the truth server can't be built")
    out = folder / tool
    with server(program, folder, ttft_ms=TTFT_MS, gap_ms=GAP_MS, tokens=TOKENS) as sent:
        command = [
            *TOOLS[tool].format(out=out).split(), str(tree / ".venv" / "bin" / "python"),
            "-m", "locust", "-f", str(tree / "locustfiles" / "chat.py"), "--headless",
            "--host", f"http://127.0.0.1:{sent.port}", "--no-probe", "--selftest", "off",
            "--synthetic-input-tokens-mean", "50", "--output-tokens-mean", str(TOKENS),
            "--report-dir", str(folder / "run"), "-u", str(STREAMS), "-t", f"{SECONDS}s",
        ]  # fmt: skip
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    if tool == "py-spy":
        return out.read_text()
    listed = ["perf", "script", "-i", str(out), "-F", "comm,pid,tid,ip,sym"]
    return subprocess.run(listed, capture_output=True, text=True, check=True).stdout


def parse_perf(text: str) -> Stacks:
    """Returns the stacks of every thread, of which the first frame is the thread's name. The
    process of the first sample is the load generator, and others are those that it starts."""
    stacks: Stacks = Counter()
    load_generator = ""
    for sample in text.strip().split("\n\n"):
        head, *lines = sample.splitlines()
        pid, _, tid = head.split()[-1].partition("/")
        load_generator = load_generator or pid
        functions = [line.split(maxsplit=1)[1] for line in reversed(lines)]
        stacks[(_name_thread(pid, tid, load_generator), *_shorten(functions))] += 1
    return stacks


def parse_py_spy(text: str) -> Stacks:
    """Returns the same from the lines of py-spy, which sees the threads that run Python."""
    stacks: Stacks = Counter()
    for line in text.splitlines():
        folded, _, count = line.rpartition(" ")
        at, frames = _split_at_thread(folded)
        pids = re.findall(r'process (\d+):"', at)
        tid = re.findall(r"thread \((\d+)\)", at)[-1]
        named = map(name_frame, frames)
        stacks[(_name_thread(pids[-1], tid, pids[0]), *_shorten(named))] += int(count)
    return stacks


def _split_at_thread(folded: str) -> tuple[str, list[str]]:
    """Returns the text up to the thread, and the frames after it."""
    found = re.match(r"(.*;thread \(\d+\)[^;]*)(?:;|$)", folded)
    if found is None:
        raise ValueError(f"no thread in {folded[:80]}")
    return found[1], [frame for frame in folded[found.end() :].split(";") if frame]


def _name_thread(pid: str, tid: str, load_generator: str) -> str:
    if pid != load_generator:
        return REPORT
    return EVENT_LOOP if tid == pid else READER


def _shorten(functions: Iterator[str] | list[str]) -> list[str]:
    """Leaves out what says nothing, and repetitions of one frame."""
    kept: list[str] = []
    for function in functions:
        if HIDDEN.search(function) or kept[-1:] == [function]:
            continue
        kept.append(function)
    return kept


def name_frame(frame: str) -> str:
    """Returns ``module:function`` without folders outside of the package and without the line."""
    found = PY_SPY_FRAME.match(frame)
    if found is None:
        return frame
    file = found["file"].rpartition("site-packages/")[2]
    if file.startswith("/"):
        file = file.rpartition("/")[2]
    module = re.sub(r"(\.cpython-[\w-]+|\.abi3)?\.(py|pyx|c|so[.\d]*)$", "", file)
    return f"{module.removesuffix('/__init__').replace('/', '.')}:{found['name']}"


def join_stacks(perf: Stacks, py_spy: Stacks) -> dict[tuple[str, ...], float]:
    """Returns the share of each stack. A thread that runs Python has py-spy's stacks, scaled to the
    CPU that perf counted."""
    all_samples = perf.total()
    joined: dict[tuple[str, ...], float] = {}
    for thread in (EVENT_LOOP, READER, REPORT):
        counted = _of_thread(perf, thread).total() / all_samples
        inner = _of_thread(perf if thread == READER else py_spy, thread)
        for stack, samples in inner.items():
            joined[stack] = counted * samples / inner.total()
    return joined


def _of_thread(stacks: Stacks, thread: str) -> Stacks:
    return Counter({stack: count for stack, count in stacks.items() if stack[0] == thread})


def lay_out(
    stacks: Mapping[tuple[str, ...], float], depth: int = 0, left: float = 0.0
) -> Iterator[Frame]:
    """Yields the frames, each level from the widest to the narrowest. Frames narrower than
    LEAST_SHARE become one at the end of their level if they are wide enough together."""
    shares: defaultdict[str, float] = defaultdict(float)
    for stack, share in stacks.items():
        if len(stack) > depth:
            shares[stack[depth]] += share
    thin = 0.0
    for name, share in sorted(shares.items(), key=lambda item: -item[1]):
        if share < LEAST_SHARE:
            thin += share
            continue
        yield Frame(name, depth, left, share)
        inner = {s: part for s, part in stacks.items() if len(s) > depth and s[depth] == name}
        yield from lay_out(inner, depth + 1, left)
        left += share
    if thin >= LEAST_SHARE:
        yield Frame("thinner frames", depth, left, thin)


def draw_flame_graph(stacks: Mapping[tuple[str, ...], float], title: str, about: str) -> str:
    frames = list(lay_out(stacks))
    height = TOP + ROW * (1 + max(frame.depth for frame in frames)) + 8
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">',
        f"<style>{STYLE}</style>",
        f'<text class="head" x="4" y="18">{escape(title)}</text>',
        f'<text class="small" x="4" y="37">{escape(about)}</text>',
        '<text class="small" x="4" y="55">Width: share of the CPU. Called functions are below '
        "their callers. Green: locust_llm. A frame shows its name when pointed at.</text>",
    ]
    lines += map(_draw_frame, frames)
    return "\n".join([*lines, "</svg>", ""])


def _draw_frame(frame: Frame) -> str:
    x = frame.left * WIDTH
    y = TOP + ROW * frame.depth
    width = frame.share * WIDTH
    said = f"{frame.name} {frame.share:.1%}"
    kind = "ours" if frame.name.startswith("locust_llm") else "other"
    letters = int((width - 4) / LETTER)
    label = f"{frame.share:.1%} {frame.name.rpartition(':')[2]}"
    text = f'<text x="{x + 3:.1f}" y="{y + 12}">{escape(label[:letters])}</text>'
    return (
        f'<g><title>{escape(said)}</title><rect class="{kind if frame.depth else "thread"}" '
        f'x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW}"/>{text if letters > 3 else ""}</g>'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("svg", type=Path)
    parser.add_argument("--tree", type=Path, default=Path.cwd(), help="a checkout with its .venv")
    options = parser.parse_args()
    tree = options.tree.resolve()
    described = ["git", "-C", str(tree), "log", "-1", "--format=%h"]
    commit = subprocess.run(described, capture_output=True, text=True, check=True).stdout.strip()
    texts = {}
    for tool in TOOLS:
        with tempfile.TemporaryDirectory() as name:
            texts[tool] = run_under(tool, tree, Path(name))
    perf = parse_perf(texts["perf"])
    stacks = join_stacks(perf, parse_py_spy(texts["py-spy"]))
    title, about = describe_run(commit, perf.total() / PERF_HZ)
    options.svg.write_text(draw_flame_graph(stacks, title, about))


def describe_run(commit: str, cpu_s: float) -> tuple[str, str]:
    """Returns the title, and the line below it."""
    return (
        f"CPU of the load generator with {STREAMS} streams, commit {commit}: {cpu_s:.1f} s",
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} virtual cores with other load beside, whole "
        f"run of {SECONDS} s with start and report; {TTFT_MS} ms to the first token, {GAP_MS} ms per "
        "token.",
    )


if __name__ == "__main__":
    main()
