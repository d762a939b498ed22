"""The documentation: every command in it works, its links lead somewhere, its options are those of
the parser."""

import argparse
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml
from support.tutorial import Tutorial, find_blocks, find_missing_labels
from support.unpatched_locust import get_empty_argument_parser, setup_parser_arguments

from locust_llm.__main__ import main
from locust_llm.commands import COMMANDS
from locust_llm.demo_command import DEMO, start_simulator
from locust_llm.exit_status import ExitStatus
from locust_llm.lab.probe import probe_user as probe
from locust_llm.lab.soak.soak_command import make_soak_parser
from locust_llm.locust_adapter import command_line_parser as options_module
from locust_llm.locust_adapter.ab_command import replace_base_by_host
from locust_llm.locust_adapter.command_line_parser import add_options, build_settings
from locust_llm.records.outcomes import FAILURES
from locust_llm.records.record import Record
from locust_llm.settings.settings_validation import validate_settings
from locust_llm.slo import rules as slo

ROOT: Final = Path(__file__).parents[2]
README: Final = ROOT / "README.md"
DOCS: Final = ROOT / "docs"
PAGES: Final = (
    README, *(ROOT / f"{name}.md" for name in ("ARCHITECTURE", "CONTRIBUTING", "SKILL")),
    *sorted(DOCS.rglob("*.md")),
)  # fmt: skip
REPORTS: Final = tuple(sorted((ROOT / "benchmarks").glob("*.md")))

SHORT: Final = ("-u", "8", "--request-count", "8", "--no-probe", "-s", "5", "--report-dir", "out")
RUN: Final = {  # run for real, with what makes it short
    "locust -f locustfile.py --headless --host localhost:8000 -u 10 -t 60": SHORT,
    "locust-llm run --headless --host localhost:8000 -u 10 -t 60": SHORT,
    "locust-llm check localhost:8000": (),
}
EXCEPTIONS: Final = {  # neither run nor parsed: how the command begins, and why
    "python3 -m venv": "installs packages, which takes minutes; CI does it each time",
    ". .venv/bin/activate": "is about the reader's shell",
    "pip install": "installs packages, which takes minutes; CI does it each time",
    "export OPENAI_API_KEY=": "is about the reader's shell",
    "pip wheel": "builds a package; make test-wheel does it",
    "docker ": "needs Docker",
    "kubectl ": "needs a cluster",
    "locust-llm compare --last": "needs such runs; the history's own tests give it some",
    "vllm serve": "needs vLLM, and a model",
    "python3 make_log.py": "is a file of its tutorial, which a test runs",
    "locust-llm run --headless --target": "is refused, which its tutorial shows",
    "deploy/gateway/start_gateway.sh": "starts nginx; in the tutorial's test a proxy replaces it",
    "head ": "shows a file of its tutorial, which a test runs",
    "bash serve.sh": "is a file of its tutorial, which a test runs",
    "kill ": "ends what its tutorial started, which a test runs",
}
FOREIGN: Final = {  # options of other programs that pages other than migration.md name
    "--tag", "--signal",
    "--stage",
    "--no-cache-prompt", "--no-enable-prefix-caching", "--no-enable-chunked-prefill", "--scale",
    "--strict",
    "--web-allowed-hosts", "--enable-metrics", "--metrics", "--speculative-config",
    "--enable-prompt-tokens-details", "--enable-per-request-metrics",
    "--per-request-spec-decode-metrics",
    "--save-result", "--save-detailed",
    "--enable-auto-tool-choice", "--tool-call-parser", "--gpu-memory-utilization", "--batch",
}  # fmt: skip


class Command(NamedTuple):
    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(self.words)}"


def blocks(page: Path, *languages: str) -> Iterator[str]:
    """The fenced blocks of a page in one of the languages."""
    for language, text in re.findall(
        r"^```(\w+)[^\n]*\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    ):
        if language in languages:
            yield text


def commands() -> Iterator[Command]:
    for page in PAGES:
        for block in blocks(page, "sh", "bash"):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                while words:
                    end = words.index("&&") if "&&" in words else len(words)
                    command, words = words[:end], words[end + 1 :]
                    command = command[: command.index(">")] if ">" in command else command
                    while re.match(r"\w+=", command[0]):  # a variable of this command alone
                        del command[0]
                    yield Command(page.name, tuple(command))


ALL: Final = tuple(dict.fromkeys(commands()))


def excepted(command: Command) -> bool:
    return any(" ".join(command.words).startswith(beginning) for beginning in EXCEPTIONS)


class Parsed(Exception):
    """The arguments of a command are fine."""


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("LOCUST", "OPENAI"))]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def the_probes_rules_stay_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe's parser adds rules for the options of a whole process: other tests have none of
    its options."""
    monkeypatch.setattr(options_module, "EXTRA_VALIDATORS", [])
    monkeypatch.setattr(probe, "EXTRA_VALIDATORS", options_module.EXTRA_VALIDATORS)


def load_parser(command: str = "run") -> Any:
    """Locust's parser with our options, and those of the probe."""
    parser = get_empty_argument_parser(default_config_files=[])
    setup_parser_arguments(parser)
    add_options(parser, before_load=lambda options: None)
    if command == "probe":
        probe._options(parser)
    return parser


# -- commands --------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [c for c in ALL if not excepted(c)], ids=str)
def test_a_command_can_be_parsed(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    program, *words = command.words
    if program == "make":
        assert re.search(rf"^{re.escape(words[0])}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif program == "locust" or words[0] in ("run", "ab", "probe", "demo"):
        name = "run" if program == "locust" else words.pop(0)
        words = (
            [*DEMO] if name == "demo" else replace_base_by_host(words) if name == "ab" else words
        )
        options: Namespace = load_parser(name).parse_args(words)
        assert list(validate_settings(build_settings(options))) == []
        given = (options.locustfile or "").split(",")
        assert [
            file
            for file in given
            if file.startswith("locustfiles/") and not (ROOT / file).is_file()
        ] == []
    elif words[0] == "soak":
        own, rest = make_soak_parser().parse_known_args(words[1:])
        assert (
            own.continue_dir
            or list(validate_settings(build_settings(load_parser().parse_args(["--soak", *rest]))))
            == []
        )
    else:
        assert program == "locust-llm"
        assert words[0] in COMMANDS
        original = argparse.ArgumentParser.parse_args

        def parse_args(self: Any, *args: Any) -> None:
            original(self, *args)
            raise Parsed

        monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
        with pytest.raises(Parsed):
            main(words)


@pytest.mark.parametrize(
    "words",
    [["run", "--no-such-option"], ["check", "a", "b"], ["figure", "--from", "x", "y"]],
    ids=str,
)
def test_a_wrong_command_would_fail(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit):
        test_a_command_can_be_parsed(Command("", ("locust-llm", *words)), monkeypatch)


def test_the_first_commands_work(tmp_path: Path) -> None:
    """Those of RUN at once, each in a folder of its own, against the simulator in the place of
    localhost:8000."""
    known = {shlex.join(command.words) for command in ALL}
    assert [text for text in RUN if text not in known] == []
    locustfile = next(block for block in blocks(README, "python") if "LLMUser" in block)
    running = {}
    with start_simulator("--ttft-ms", "20", "--itl-ms", "1") as url:
        for number, (text, more) in enumerate(RUN.items()):
            folder = tmp_path / str(number)
            folder.mkdir()
            (folder / "locustfile.py").write_text(locustfile)
            program, *words = shlex.split(
                text.replace("localhost:8000", url.removeprefix("http://"))
            )
            module = program.replace("-", "_")
            running[text] = subprocess.Popen(
                [sys.executable, "-m", module, *words, *more], cwd=folder, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
        ended = {text: process.communicate(timeout=120)[0] for text, process in running.items()}
    for number, (text, process) in enumerate(running.items()):
        assert process.returncode == 0, ended[text]
        if RUN[text]:
            records = tmp_path / str(number) / "out" / "profile_export.jsonl"
            assert len(records.read_text().splitlines()) == 8, ended[text]
            assert "SIMULATED" in ended[text]


def test_every_exception_is_needed() -> None:
    texts = [" ".join(command.words) for command in ALL]
    assert [
        beginning
        for beginning in EXCEPTIONS
        if not any(text.startswith(beginning) for text in texts)
    ] == []


# -- what pages name -------------------------------------------------------------------------------


def known_options() -> set[str]:
    simulate = argparse.ArgumentParser()
    from locust_llm.simulator.simulator_flags import add_simulator_arguments

    add_simulator_arguments(simulate)
    actions = [*load_parser("probe")._actions, *simulate._actions]
    found = {flag for action in actions for flag in action.option_strings}
    package = ROOT / "locust_llm"
    files = [
        *package.rglob("*_command.py"),
        package / "lab" / "history" / "select_runs.py",
        package / "lab" / "reproduce" / "verify_reproduce.py",
    ]
    sources = "".join(path.read_text() for path in files)
    return found | set(re.findall(r'"(--[a-z-]+)"', sources))


def test_options_that_pages_name_exist() -> None:
    known = known_options() | FOREIGN
    unknown = {
        f"{page.name}: {flag}"
        for page in PAGES
        if page.name not in ("migration.md", "coming-from-other-tools.md")
        for span in re.findall(r"`([^`\n]+)`", page.read_text("utf-8"))
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", span)
        if flag not in known
    }
    assert unknown == set()


def test_rules_that_pages_name_can_be_parsed() -> None:
    table = re.findall(
        r"^\| `([^`]+)` \|", (DOCS / "reference" / "slo.md").read_text("utf-8"), re.MULTILINE
    )
    rules = [text for text in table if " " in text and not text.startswith("--")]
    assert len(rules) > 10
    for text in rules:
        slo.parse_rule(text)
    presets = re.findall(
        r"`(chat|mlperf-[^`]+)`", (DOCS / "reference" / "slo.md").read_text("utf-8")
    )
    assert set(presets) == set(slo.PRESETS)


def test_fields_of_the_record_that_pages_name_exist() -> None:
    table = (DOCS / "how-to" / "locustfiles.md").read_text("utf-8").partition("### The record")[2]
    named = {
        name
        for row in re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    assert len(named) > 30
    assert {name for name in named if not hasattr(Record, name)} == set()


def test_every_failure_class_is_explained() -> None:
    table = (
        (DOCS / "reference" / "failures.md").read_text("utf-8").partition("## What each fault")[0]
    )
    assert set(re.findall(r"`(\w+)`", table)) >= set(FAILURES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_in_a_page_compiles(page: Path) -> None:
    for block in blocks(page, "python"):
        compile(block, page.name, "exec")


@pytest.mark.parametrize("page", [*PAGES, *REPORTS], ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    """Headings are checked by `make docs`."""
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text("utf-8"))
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.name)
def test_a_report_has_an_abstract_and_its_origin(report: Path) -> None:
    """Below the title an abstract, and then a table with date, machine, commit and command."""
    if report.name == "README.md":
        return
    abstract, _, rest = report.read_text("utf-8").partition("\n| | |\n")
    title, first, *_ = abstract.split("\n\n")
    assert title.startswith("# ")
    assert first[0].isalnum() or first[0] == "`"
    keys = re.findall(r"^\| ([a-z ]+) \| [^|]", rest.partition("\n\n")[0], re.MULTILINE)
    assert [key.split()[0] for key in keys] == ["date", "machine", "commit", "repeat"]


def test_targets_of_make_that_pages_name_exist() -> None:
    targets = {
        line.partition(":")[0]
        for line in (ROOT / "Makefile").read_text().splitlines()
        if ": " in line
    }
    named = {name for page in PAGES for name in re.findall(r"`make ([a-z-]+)`", page.read_text())}
    assert named
    assert named <= targets


def load_maker(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_images_show_the_pages_of_today() -> None:
    """Layout, and the words at the top of the example's report, are those that the images were made
    of."""
    pytest.importorskip("playwright", reason="needs the package playwright")
    screenshots = load_maker("screenshots")
    made_of = json.loads(screenshots.MADE_OF.read_text())
    assert made_of == screenshots.describe_sources(), "make screenshots makes the images anew"
    top = "<header><h1>Load test</h1><p>Passed: <b>TTFT</b></p></header><p>below</p>"
    assert screenshots.read_top_of_report(top) == "Load test Passed: TTFT"
    assert screenshots.hash_files(["page.css"]) != screenshots.hash_files(["plots.css"])


@pytest.mark.parametrize("maker", ["generate_metrics", "generate_scenarios"])
def test_a_page_that_is_made_is_up_to_date(maker: str) -> None:
    module = load_maker(maker)
    assert module.page() == module.PAGE.read_text("utf-8"), "make docs makes it anew"


def test_the_page_of_each_command_is_up_to_date() -> None:
    made = load_maker("generate_options").pages()
    folder = DOCS / "reference" / "cli"
    assert {path.stem for path in made} == {*COMMANDS, "index"}
    assert {path: path.read_text("utf-8") for path in folder.glob("*.md")} == made, (
        "make docs makes them anew"
    )


def test_each_option_of_a_run_has_an_anchor_and_its_default() -> None:
    page = (DOCS / "reference" / "cli" / "run.md").read_text("utf-8")
    assert '<a id="prefill-concurrency"></a>`--prefill-concurrency=N`' in page
    rows = re.findall(r'^\| <a id="([\w-]+)"></a>', page, re.MULTILINE)
    assert len(rows) == len(set(rows)) > 100
    pages = "".join(path.read_text("utf-8") for path in DOCS.rglob("*.md"))
    assert "%(" not in pages
    assert rows.index("prefill-concurrency") < rows.index("slo") < rows.index("tenant-mix")


def test_llms_txt_lists_every_page(tmp_path: Path) -> None:
    llms = load_maker("llms")
    nav = [
        {"Home": "index.md"},
        {"Reference": [{"CLI": ["reference/cli/index.md"]}, {"SLO": "reference/slo.md"}]},
    ]
    pages = list(llms.list_pages(nav))
    assert [(page.section, page.path) for page in pages] == [
        ("", "index.md"),
        ("Reference", "reference/cli/index.md"),
        ("Reference", "reference/slo.md"),
    ]
    listed = llms.format_list(nav)
    assert "- [locust-llm](./): locust-llm is a load tester for LLM servers.\n" in listed
    assert (
        "\n## Reference\n\n- [Commands and options](reference/cli/): A page for each command.\n"
        in listed
    )
    assert "](reference/slo/)" in listed
    full = llms.format_full_text(nav)
    assert all(f"<!-- {page.path} -->\n\n# {page.title}\n" in full for page in pages)


def test_the_navigation_has_every_page_once() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]
    listed = [page.path for page in load_maker("llms").list_pages(nav)]
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_pictures_are_small() -> None:
    assert [
        image.name
        for image in (ROOT / "docs" / "images").glob("*.png")
        if image.stat().st_size > 300_000
    ] == []


# -- tutorials -------------------------------------------------------------------------------------

TUTORIALS: Final = tuple(sorted((DOCS / "tutorials").glob("*.md")))
MIX: Final = {'"200,100:70;8000,100:30"': '"50,10:70;200,10:30"'}
SHORTER: Final[dict[str, dict[str, str]]] = {
    "answers-under-load": {"-t 2m": "-t 12", "-t 10m": "-t 8"},
    "ci-gate": {"-t 2m": "-t 8", "--warmup-duration 10": "--warmup-duration 2"},
    "clients-who-left": {
        "disconnect localhost:8080": "disconnect localhost:8000 -t 10s",
        "disconnect localhost:8000": "disconnect localhost:8000 -t 10s", "-t 40s": "-t 10s",
        "--clients 16": "--clients 2",
    },
    "coming-from-other-tools": {
        "--benchmark-duration 60": "--benchmark-duration 6", "--num-prompts 100": "--num-prompts 20",
        "-t 30": "-t 6",
    },
    "compare-builds": {
        "-t 6m": "-t 30 --block-duration 1.2 --output-tokens-mean 10 --output-tokens-stddev 0", "-t 2m": "-t 8",
        "--warmup-duration 10": "--warmup-duration 2",
    },
    "gateway-cost": {
        "-t 3m": "-t 10 --levels 2 --rates 20 --parts faults,cancels,routing,times",
        "-t 2m": "-t 10 --levels 2 --rates '' --parts faults,times",
    },
    "find-a-leak": {"-t 10m": "-t 60s"},
    "kubernetes": {"-t 60": "-t 8"},
    "prefill-concurrency": {
        "-t 2m": "-t 8", "-t 10m": "-t 40", "concurrency=1,2,4": "concurrency=1", **MIX,
    },
    "rag-and-agent": {"-t 60": "-t 8"},
    "replay": {"--fixed-schedule": "--fixed-schedule --fixed-schedule-end-offset 10000"},
    "server-dies": {"-t 60": "-t 20", "at 20s": "at 8s", "sleep 10": "sleep 3"},
    "size-a-deployment": {
        "-t 5m": "-t 30", "-t 3m": "-t 8", "concurrency=1..128": "concurrency=1..8",
        "-u 24": "-u 4", "--warmup-duration 10": "--warmup-duration 2",
        "tokens-mean 1500": "tokens-mean 100", "tokens-mean 200": "tokens-mean 20",
    },
    "slow-p99": {"-t 2m": "-t 10"},
}  # fmt: skip
"""By page, what makes its commands long, and what a test has in its place."""
TUTORIAL_FILES: Final = {
    "coming-from-other-tools": {
        "vllm_bench.json": ROOT / "tests/data/results/vllm-bench-0.32.0/concurrency-8.json"
    }
}
"""Files that a reader of the page has."""
REFUSED: Final = ("locust-llm run --headless --target",)
"""How a command begins that the page shows because it is refused."""
COMPARED: Final = re.compile(r"[A-Z][\w ]+ p\b|.* p\b.* p\b")
"""Rows of two runs that are compared: the console has those that differ. Heads of tables: a busy
machine has other columns."""
RULES_DECIDE: Final = (ExitStatus.OK, ExitStatus.RULE_FAILED, ExitStatus.INCONCLUSIVE)
"""A shortened run may decide otherwise than the page shows."""


def expect_status(command: str) -> tuple[int, ...]:
    if command.startswith(REFUSED):
        return (ExitStatus.REFUSED,)
    decides = "--slo" in command or command.startswith("locust-llm soak")
    return RULES_DECIDE if decides else (ExitStatus.OK,)


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_works(page: Path, tmp_path: Path) -> None:
    """Each command ends as it should and prints the lines that the page shows, with other
    values."""
    for name, file in TUTORIAL_FILES.get(page.stem, {}).items():
        shutil.copy(file, tmp_path / name)
    tutorial = Tutorial(page, tmp_path, SHORTER[page.stem])
    for result in tutorial.run():
        assert result.status in expect_status(result.command), f"{result.command}\n{result.output}"
    assert [label for label in tutorial.missing if not COMPARED.match(label)] == []
    assert set(SHORTER[page.stem]) == tutorial.used


def test_a_line_that_a_command_does_not_print_is_noticed() -> None:
    shown = "Largest safe: 27 users\nTTFT p95 (ms)  23  549\n...\nThe capacity: 3\n"
    printed = "Largest\n  safe: 1 user\n  TTFT p95 (ms)   7.5   9\n"
    assert find_missing_labels(shown, printed) == ["The capacity"]


def test_a_tutorial_has_600_to_900_words() -> None:
    """Its text and its commands, without the outputs and the files that it shows."""
    counts = {page.stem: count_words(page.read_text("utf-8")) for page in TUTORIALS}
    assert {name: count for name, count in counts.items() if not 600 <= count <= 900} == {}


def count_words(page: str) -> int:
    shown = [block.text for block in find_blocks(page) if block.language != "sh"]
    return len(page.split()) - sum(len(text.split()) for text in shown)
