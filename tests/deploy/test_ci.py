"""The action, and the GitLab job: their steps, as a runner takes them, against the simulator and a
stub of the API."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, NamedTuple

import jsonschema
import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema
from support.runs import free_port

from locust_llm.demo_command import start_simulator
from locust_llm.exit_status import ExitStatus
from locust_llm.report.pull_request_comment import make_comment_mark
from locust_llm.slo.rules import parse_rule

CHECKOUT: Final = Path(__file__).parents[2]
CI: Final = CHECKOUT / "deploy" / "ci"
ACTION: Final[dict[str, Any]] = yaml.safe_load((CI / "action.yml").read_text())
STEPS: Final[list[dict[str, Any]]] = ACTION["runs"]["steps"]
SHORT: Final = (
    "-u 4 --request-count 40 --synthetic-input-tokens-mean 50 --output-tokens-mean 5 "
    "--no-probe --selftest off"
)
EXPRESSION: Final = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")


# -- the files -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "file"), [("github-actions", "action.yml"), ("gitlab-ci", "gitlab.yml")]
)
def test_a_file_is_what_its_system_takes(schema: str, file: str) -> None:
    jsonschema.validate(
        yaml.safe_load((CI / file).read_text()), get_builtin_schema(f"vendor.{schema}")
    )


def test_the_workflow_of_the_tutorial_is_what_github_takes() -> None:
    text = (CHECKOUT / "docs" / "tutorials" / "ci-gate.md").read_text()
    ((title, block),) = re.findall(r"```yaml title=\"(.*?)\"\n(.*?)```", text, re.DOTALL)
    workflow = yaml.safe_load(block)
    workflow["on"] = workflow.pop(True)  # what YAML 1.1 takes the word for
    jsonschema.validate(workflow, get_builtin_schema("vendor.github-workflows"))
    (job,) = workflow["jobs"].values()
    given = [step["with"] for step in job["steps"] if "deploy/ci" in step.get("uses", "")]
    assert len(given) == 2
    assert set().union(*given) <= set(ACTION["inputs"])
    # the step that fetches the base asks for this very file
    assert f"--workflow {Path(title).name} " in job["steps"][1]["run"]
    assert job["steps"][1]["run"].count(f"--dir {given[0]['base']}") == 1


def test_the_workflows_of_the_guide_are_what_github_takes() -> None:
    """Against a baseline other steps follow the checkout."""
    text = (CHECKOUT / "docs" / "how-to" / "ci.md").read_text()
    limit, baseline, _ = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    workflow = yaml.safe_load(limit)
    workflow["on"] = workflow.pop(True)
    (job,) = workflow["jobs"].values()
    checkout, *with_limit = job["steps"]
    fetch, against_baseline = yaml.safe_load(baseline)
    for steps in (with_limit, [fetch, against_baseline]):
        job["steps"] = [checkout, *steps]
        jsonschema.validate(workflow, get_builtin_schema("vendor.github-workflows"))
        assert set(steps[-1]["with"]) <= set(ACTION["inputs"])
    (rule,) = re.findall(r"rule=(.*?)\"", fetch["run"])
    assert parse_rule(rule).base == against_baseline["with"]["base"]
    assert f"steps.{fetch['id']}.outputs.rule" in against_baseline["with"]["slo"]


def list_scripts(part: Any) -> Iterator[str]:
    """Each ``run:`` in a workflow, an action or a step."""
    if isinstance(part, list):
        for one in part:
            yield from list_scripts(one)
    elif isinstance(part, dict):
        if isinstance(part.get("run"), str):
            yield part["run"]
        for one in part.values():
            yield from list_scripts(one)


def list_workflow_texts() -> Iterator[str]:
    """The action, our own workflows, and those in the pages."""
    yield (CI / "action.yml").read_text()
    for path in (CHECKOUT / ".github" / "workflows").glob("*.yml"):
        yield path.read_text()
    for path in (CHECKOUT / "docs").rglob("*.md"):
        yield from re.findall(
            r"^```yaml[^\n]*\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE
        )


def test_no_text_of_a_workflow_comes_into_a_script() -> None:
    """As a variable it cannot be a command, whatever is in it."""
    scripts = [
        script
        for text in list_workflow_texts()
        for document in yaml.safe_load_all(text)
        for script in list_scripts(document)
    ]
    assert len(scripts) > len(STEPS)
    assert [script for script in scripts if "${{" in script] == []
    used = {
        name
        for step in STEPS
        for text in step_texts(step)
        for name in re.findall(r"inputs\.([\w-]+)", text)
    }
    assert used == set(ACTION["inputs"])
    outputs = {
        name: re.findall(r"steps\.(\w+)\.outputs\.([\w-]+)", one["value"])
        for name, one in ACTION["outputs"].items()
    }
    assert outputs == {name: [("run", name)] for name in ("verdict", "exit-status", "report-path")}


def step_texts(step: dict[str, Any]) -> list[str]:
    return [step.get("if", ""), *step.get("env", {}).values(), *step.get("with", {}).values()]


def test_a_refusal_is_an_annotation() -> None:
    """By the pattern that the action registers with the runner."""
    (matcher,) = json.loads((CI / "problems.json").read_text())["problemMatcher"]
    (pattern,) = matcher["pattern"]
    said = subprocess.run(
        [sys.executable, "-m", "locust_llm", "run", "--host", "x", "--slo", "nonsense"],
        capture_output=True,
        text=True,
    )
    assert said.returncode == ExitStatus.REFUSED
    found = [
        match[pattern["message"]]
        for line in said.stderr.splitlines()
        if (match := re.search(pattern["regexp"], line))
    ]
    assert len(found) == 1
    assert found[0].startswith("SLO 'nonsense'")


# -- a runner --------------------------------------------------------------------------------------


class Done(NamedTuple):
    status: int
    said: str


class Job:
    """Takes the steps of the action as GitHub's runner does, but those that use another action."""

    def __init__(
        self, root: Path, temp: Path, path: str, event: dict[str, Any], **inputs: str
    ) -> None:
        self.given = {
            name: str(one.get("default", "")) for name, one in ACTION["inputs"].items()
        } | inputs
        self.event, self.root, self.temp, self.path = event, root, temp, path
        self.workspace, self.action = root / "workspace", root / "checkout" / "deploy" / "ci"
        self.workspace.mkdir(parents=True)
        (root / "event.json").write_text(json.dumps(event))
        self.outputs, self.done = dict[str, str](), dict[str, Done]()

    @property
    def failed(self) -> bool:
        return any(one.status for one in self.done.values())

    def value(self, expression: str) -> str:
        """Of ``steps.run.outputs.x``, ``a && b``, ``always()``; a field that is not there is
        empty."""

        def looked_up(name: str) -> str:
            where, _, rest = name.partition(".")
            if where == "inputs":
                return self.given[rest]
            if where == "steps":
                return self.outputs.get(rest.replace(".outputs.", "."), "")
            if rest == "token":
                return "token"
            found: Any = {"event": self.event}
            for part in rest.split("."):
                found = found.get(part, {})
            return str(found or "")

        text = expression.replace("&&", " and ").replace("always()", "True")
        text = re.sub(
            r"\b(?:inputs|steps|github)(?:\.[\w-]+)+", lambda name: repr(looked_up(name[0])), text
        )
        return str(eval(text))

    def filled(self, text: str) -> str:
        return EXPRESSION.sub(lambda found: self.value(found[1]), text)

    def take(self, *names: str) -> None:
        """All steps, or these, in their order."""
        for step in STEPS:
            asked = self.value(step.get("if", "True")) == "True" and (
                "always()" in step.get("if", "") or not self.failed
            )
            if asked and "run" in step and (not names or step["name"] in names):
                self.done[step["name"]] = self._run(step)

    def _run(self, step: dict[str, Any]) -> Done:
        files = {
            name: self.root / f"{step['name']}.{name}".replace(" ", "-")
            for name in ("OUTPUT", "STEP_SUMMARY", "PATH", "ENV")
        }
        for file in files.values():
            file.touch()
        (script := self.root / "script.sh").write_text(step["run"])
        env = {
            "PATH": self.path, "HOME": str(self.root), "RUNNER_TEMP": str(self.temp),
            "GITHUB_ACTIONS": "true",
            "GITHUB_WORKSPACE": str(self.workspace), "GITHUB_ACTION_PATH": str(self.action),
            "GITHUB_REPOSITORY": "us/it", "GITHUB_EVENT_PATH": str(self.root / "event.json"),
            "PIP_NO_DEPS": "1",
            **{name: os.environ[name] for name in os.environ if name.startswith("PIP_")},
            **{f"GITHUB_{name}": str(file) for name, file in files.items()},
            **{name: self.filled(text) for name, text in step.get("env", {}).items()},
        }  # fmt: skip
        assert step["shell"] == "bash"
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", script], cwd=self.workspace,
            env=env, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300,
        )  # fmt: skip
        for name, value in told(files["OUTPUT"].read_text()):
            self.outputs[f"{step.get('id', '')}.{name}"] = value
        self.path = ":".join([*files["PATH"].read_text().split(), self.path])
        return Done(done.returncode, done.stdout)

    def summary(self) -> str:
        return (self.root / "Run.STEP_SUMMARY").read_text()


def told(text: str) -> Iterator[tuple[str, str]]:
    """Names and values of a file of outputs: ``name=value``, or ``name<<END``, lines, ``END``."""
    lines = iter(text.splitlines())
    for line in lines:
        name, equals, value = line.partition("=")
        if not equals:
            name, _, end = line.partition("<<")
            value = "\n".join(takewhile(end.__ne__, lines))
        yield name, value


# -- the steps -------------------------------------------------------------------------------------


def test_options_are_words_and_never_commands(tmp_path: Path) -> None:
    (bin_ := tmp_path / "bin").mkdir()
    (bin_ / "locust-llm").write_text(
        '#!/bin/bash\nprintf "%s\\n" "$@" "slo $LOCUST_LLM_SLO"\nexit 4\n'
    )
    (bin_ / "locust-llm").chmod(0o755)
    evil = '$(touch evil) `touch evil` "; touch evil #"'
    (temp := tmp_path / "temp").mkdir()
    given = {
        "host": "x; touch evil",
        "args": f"-u 3\n--slo 'a b' {evil}",
        "slo": evil,
        "name": evil,
    }
    job = Job(tmp_path / "job", temp, f"{bin_}:{os.environ['PATH']}", {}, **given)
    job.take("Run", "Comment", "Verdict")
    words = job.done["Run"].said.splitlines()
    assert words[1:6] == [
        "run",
        "--headless",
        "--host",
        "x; touch evil",
        "--wait-for-model-timeout",
    ]
    assert words[9:-1] == [
        "-u", "3", "--slo", "a b", "$(touch", "evil)", "`touch", "evil`", "; touch evil #",
        f"slo {evil}",
    ]  # fmt: skip
    assert list(job.workspace.iterdir()) == []
    assert job.outputs["run.exit-status"] == "4"
    # no report: no comment
    assert {name: one.status for name, one in job.done.items()} == {"Run": 0, "Verdict": 4}


def copy_checkout(folder: Path) -> None:
    """Copy what pip needs to install the package, and the action."""
    for name in ("locust_llm", "deploy"):
        shutil.copytree(
            CHECKOUT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.so")
        )
    for name in ("setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(CHECKOUT / name, folder / name)


def use_dependencies_here(venv: Path) -> None:
    """With PIP_NO_DEPS an environment has the package alone."""
    (site,) = venv.glob("lib/*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")


@pytest.mark.slow
def test_from_an_empty_folder_to_the_annotated_verdict(tmp_path: Path) -> None:
    """A run that passes, then on a pull request one that fails, with a server of its own, against
    the first as its base."""
    temp = tmp_path / "temp"
    temp.mkdir()
    copy_checkout(tmp_path / "pass" / "checkout")
    path = f"{Path(sys.executable).resolve().parent}:/usr/local/bin:/usr/bin:/bin"
    port = free_port()
    host = {
        "host": f"127.0.0.1:{port}",
        "server": f"locust-llm simulate --port {port} --ttft-ms 20 --itl-ms 2",
        "args": SHORT,
    }
    passed = Job(tmp_path / "pass", temp, path, {}, **host, slo="error_rate < 20%")
    passed.take("Install locust-llm")
    assert not passed.failed, passed.done
    use_dependencies_here(temp / "locust-llm")
    passed.take("Start the server", "Run", "Stop the server", "Comment", "Verdict")
    assert {name: one.status for name, one in passed.done.items() if one.status} == {}, passed.done[
        "Run"
    ].said
    assert "Comment" not in passed.done
    report = Path(passed.outputs["run.report-path"])
    assert passed.outputs | {"server.pid": ""} == {
        "server.pid": "", "run.verdict": "PASS", "run.exit-status": "0",
        "run.report-path": str(report),
    }  # fmt: skip
    assert (report / "report.html").stat().st_size
    assert re.findall("^::(?:error|warning|notice).*", passed.done["Run"].said, re.MULTILINE)[
        0
    ].startswith("::notice title=locust-llm%3A SLO PASS::")
    assert "SLO PASS" in passed.summary()

    event, comments = {"pull_request": {"number": 7}}, Comments(tmp_path / "gh")
    failed = Job(
        tmp_path / "fail",
        temp,
        f"{comments.path}:{passed.path}",
        event,
        **host,
        base=str(report),
        slo="ttft p50 < 1ms\nerror_rate > 80%",
    )
    failed.action = passed.action
    failed.take("Start the server", "Run", "Stop the server", "Comment", "Verdict")
    said = failed.done["Run"].said
    assert {name: one.status for name, one in failed.done.items() if one.status} == {
        "Verdict": ExitStatus.RULE_FAILED
    }, said
    assert failed.outputs["run.verdict"] == "FAIL"
    lines = re.findall(r"^::(error|warning|notice) title=(.*?)::(.*)$", said, re.MULTILINE)
    assert ("error", "SLO FAIL%3A error_rate > 80%25") in [line[:2] for line in lines]
    assert next(text for _, title, text in lines if "error_rate" in title).startswith(
        "observed 0%25 (95%25 interval 0%25 to "
    )
    assert "listening on" in failed.done["Stop the server"].said
    (comment,) = comments.all()
    assert comment["body"].startswith(make_comment_mark("load-test"))
    for part in ("SLO FAIL", "error\\_rate \\>", "| TTFT p50 (ms)", "base", "this run"):
        assert part in comment["body"]


def test_the_job_of_gitlab(tmp_path: Path) -> None:
    """Its lines, with programs that say what they were told: options by variables, a comment of a
    merge request only."""
    job, note = (
        yaml.safe_load((CI / "gitlab.yml").read_text())[name]
        for name in (".locust-llm", ".locust-llm-comment")
    )
    (bin_ := tmp_path / "bin").mkdir()
    (report := tmp_path / "report").mkdir()
    for program in ("locust-llm", "glab"):
        (bin_ / program).write_text('#!/bin/bash\nprintf "<%s>" "$@"\n')
        (bin_ / program).chmod(0o755)

    def said(part: str, job: dict[str, Any] = job, **env: str) -> str:
        lines = [line for line in job[part] if not line.startswith("PATH=")]
        known = {
            "PATH": f"{bin_}:{os.environ['PATH']}",
            "CI_PROJECT_DIR": "/p",
            "CI_JOB_NAME": "a b",
            "LOCUST_LLM_REPORT_DIR": str(report),
            "CI_MERGE_REQUEST_IID": "3",
            "CI_PROJECT_URL": "https://git/us/it",
        }
        bash = ["bash", "-eo", "pipefail", "-c", "\n".join(lines)]
        return subprocess.run(
            bash, env=known | env, cwd=tmp_path, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    assert said("script") == "<run><--headless>"
    assert said("after_script") == ""
    assert (report / "comment.md").read_text() == f"<comment><{report}><--name><a b>"
    assert said("after_script", LOCUST_LLM_BASE="x y") == ""
    text = (report / "comment.md").read_text()
    assert text.endswith("<--base><x y>")
    assert said("script", note) == f"<mr><note><3><--repo><https://git/us/it><--message><{text}>"
    assert note["rules"][0]["if"] == "$CI_MERGE_REQUEST_IID && $GITLAB_TOKEN"
    assert job["allow_failure"]["exit_codes"] == [ExitStatus.INCONCLUSIVE]


@pytest.mark.slow
def test_a_merge_request_is_compared_with_the_default_branch(tmp_path: Path) -> None:
    """The jobs of GitLab in empty folders: the default branch stores its report, the merge request
    fetches it, compares with it, and gets a note."""
    jobs = yaml.safe_load((CI / "gitlab.yml").read_text())
    copy_checkout(tmp_path / "checkout")
    (bin_ := tmp_path / "bin").mkdir()
    stored, note = tmp_path / "main", tmp_path / "note.md"
    (bin_ / "glab").write_text(
        "#!/bin/bash\n"
        'if [ "$1 $2" = "job artifact" ]; then\n'
        f'  [ "$3 $4" = "main load-test" ] && mkdir -p "$8" && cp -r "{stored}/report" "$8"\n'
        f'else printf "%s" "$7" > "{note}"; fi\n'
    )
    (bin_ / "glab").chmod(0o755)

    def run_job(name: str, folder: Path, **env: str) -> str:
        job = jobs[name]
        own = {key: str(value) for key, value in job["variables"].items()}
        known = {
            "PATH": f"{bin_}:{Path(sys.executable).resolve().parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(tmp_path), "CI_PROJECT_DIR": str(folder), "CI_JOB_NAME": "load-test",
            "CI_DEFAULT_BRANCH": "main", "CI_PROJECT_URL": "https://git/us/it",
            "CI_MERGE_REQUEST_IID": "3",
            # its dependencies are those here
            "PIP_NO_DEPS": "1", "PYTHONPATH": sysconfig.get_path("purelib"),
            **{name: os.environ[name] for name in os.environ if name.startswith("PIP_")},
            **own, **env, "LOCUST_LLM_REPORT_DIR": str(folder / "report"),
        }  # fmt: skip
        said = ""
        # a runner gives the lines of the first two parts to one shell
        for parts in (("before_script", "script"), ("after_script",)):
            lines = [line for part in parts for line in job.get(part, [])]
            done = subprocess.run(
                ["bash", "-exo", "pipefail", "-c", "\n".join(lines)],
                env=known, cwd=folder, text=True, timeout=300, check=False,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            said += done.stdout
            assert done.returncode == 0, said
        return said

    with start_simulator("--ttft-ms", "20", "--itl-ms", "2") as url:
        run = {
            "LOCUST_LLM_PACKAGE": str(tmp_path / "checkout"), "LOCUST_HOST": url,
            "LOCUST_USERS": "4", "LOCUST_LLM_REQUEST_COUNT": "40",
            "LOCUST_LLM_SYNTHETIC_INPUT_TOKENS_MEAN": "50", "LOCUST_LLM_OUTPUT_TOKENS_MEAN": "20",
            "LOCUST_LLM_SLO": "error_rate < 20%", "LOCUST_LLM_SELFTEST": "off",
            "LOCUST_LLM_BASE_SLO": "itl p50 within 300% of base/report",
        }  # fmt: skip
        stored.mkdir()
        first = run_job(".locust-llm", stored, **run)
        (merge := tmp_path / "merge").mkdir()
        run_job(".locust-llm-baseline", merge)
        second = run_job(".locust-llm", merge, **run)
    run_job(".locust-llm-comment", merge)
    assert not (stored / "base").exists()
    assert "SLO PASS" in first
    assert "SLO PASS" in second
    text = note.read_text()
    assert text.startswith(make_comment_mark("load-test"))
    assert "itl p50 within 300% of base/report" in text
    assert "| TTFT p50 (ms)" in text


@pytest.mark.parametrize("page", ["how-to/ci.md", "tutorials/ci-gate.md"])
@pytest.mark.parametrize("has_baseline", [True, False])
def test_the_baseline_of_a_page_is_the_last_good_run(
    page: str, has_baseline: bool, tmp_path: Path
) -> None:
    """Without one the step ends well, and has no output."""
    text = (CHECKOUT / "docs" / page).read_text()
    blocks = re.findall(r"^```yaml[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    scripts = [one for block in blocks for one in list_scripts(yaml.safe_load(block))]
    (script,) = [one for one in scripts if "gh run download" in one]
    (bin_ := tmp_path / "bin").mkdir()
    (bin_ / "gh").write_text(
        '#!/bin/bash\nif [ "$2" = list ]; then echo "$LAST"; else mkdir "$7"; fi\n'
        'printf "%s " "$@" >> asked\n'
    )
    (bin_ / "gh").chmod(0o755)
    (workspace := tmp_path / "empty").mkdir()
    output = tmp_path / "output"
    output.touch()
    subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=workspace, check=True,
        env={"PATH": f"{bin_}:{os.environ['PATH']}", "GITHUB_OUTPUT": str(output),
             "LAST": "42" if has_baseline else ""},
    )  # fmt: skip
    asked = (workspace / "asked").read_text()
    assert ("run download 42 --name load-test --dir base" in asked) == has_baseline
    assert (workspace / "base").is_dir() == has_baseline
    assert len(output.read_text().splitlines()) == has_baseline


# -- comments --------------------------------------------------------------------------------------

GH: Final = f"""#!{sys.executable}
import json, os, sys
from pathlib import Path

home = Path({{home!r}})
comments = json.loads((home / "comments.json").read_text())
words = sys.argv[1:]
(home / "asked").open("a").write(" ".join(words) + " by " + os.environ["GH_TOKEN"] + chr(10))
assert words.pop(0) == "api"
if words[0] == "user":
    print("a refusal in JSON" if not {{me!r}} else {{me!r}})
    sys.exit(not {{me!r}})
if (home / "refuses").exists():
    sys.exit("HTTP 403")
if "--jq" in words:
    ours = [one for one in comments if one["by"] == os.environ["AUTHOR"]]
    print(*[one["id"] for one in ours if one["body"].startswith(os.environ["MARK"])], sep=chr(10))
    sys.exit()
name, file = words[words.index("--field") + 1].split("=@")
body = Path(file).read_text()
if "PATCH" in words:
    (one,) = [one for one in comments if words[2].endswith("/comments/" + str(one["id"]))]
    one[name] = body
else:
    comments.append({{{{"id": len(comments) + 1, "by": {{me!r}} or "github-actions[bot]", name: body}}}})
(home / "comments.json").write_text(json.dumps(comments))
"""
"""A stub of GitHub's program: it does what the action's filter asks for."""


class Comments:
    """Those of a pull request, as ``gh`` finds and changes them."""

    def __init__(self, home: Path, me: str = "") -> None:
        (home / "bin").mkdir(parents=True)
        self.home, self.path = home, str(home / "bin")
        (home / "bin" / "gh").write_text(GH.format(home=str(home), me=me))
        (home / "bin" / "gh").chmod(0o755)
        self.keep([])

    def keep(self, comments: list[dict[str, Any]]) -> None:
        (self.home / "comments.json").write_text(json.dumps(comments))

    def all(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads((self.home / "comments.json").read_text())
        return found

    def asked(self) -> list[str]:
        return (self.home / "asked").read_text().splitlines()


def commented(tmp_path: Path, comments: Comments, name: str, said: str) -> Done:
    """The step of the action, with a locust-llm that prints ``said`` below the mark of ``name``."""
    script = comments.home / "bin" / "locust-llm"
    script.write_text(
        f'#!/bin/bash\n[ "$1" = comment ] && printf "%s\\n" "{make_comment_mark(name)}" "{said}"\n'
    )
    script.chmod(0o755)
    path = f"{comments.path}:{os.environ['PATH']}"
    root = tmp_path / f"{name}-{said}"
    job = Job(
        root, comments.home, path, {"pull_request": {"number": 7}}, host="h", name=name, token="t"
    )
    job.outputs["run.report-path"] = str(tmp_path)
    job.take("Comment")
    return job.done["Comment"]


@pytest.mark.parametrize("me", ["", "build"])
def test_a_comment_stays_one(me: str, tmp_path: Path) -> None:
    """Also behind others, and beside those of others that begin alike."""
    comments = Comments(tmp_path / "gh", me)
    spoofed = [
        {"id": n, "by": "somebody", "body": f"{make_comment_mark('a')} spoofed"} for n in (1, 2, 3)
    ]
    comments.keep(spoofed)
    for name, said in (("a", "one"), ("b", "other"), ("a", "two")):
        assert commented(tmp_path, comments, name, said).said == ""
    assert comments.all()[:3] == spoofed
    assert [one["body"] for one in comments.all()[3:]] == [
        f"{make_comment_mark('a')}\ntwo\n",
        f"{make_comment_mark('b')}\nother\n",
    ]
    assert comments.asked()[-1].startswith("api --method PATCH repos/us/it/issues/comments/4 ")
    assert all(line.endswith(" by t") for line in comments.asked())


def test_a_token_that_may_not_write_is_a_warning(tmp_path: Path) -> None:
    comments = Comments(tmp_path / "gh")
    (tmp_path / "gh" / "refuses").touch()
    done = commented(tmp_path, comments, "a", "one")
    assert done.status == 0
    reason, warning = done.said.splitlines()
    assert reason == "HTTP 403"
    assert warning.startswith("::warning title=locust-llm::The pull request has no comment;")
