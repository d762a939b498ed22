"""The image, without Docker: its Dockerfile is read, and its steps are taken, as its user and with
a read-only root."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import yaml
from support.runs import free_port

from locust_llm import read
from locust_llm.demo_command import start_simulator
from locust_llm.exit_status import ExitStatus
from locust_llm.records.outcomes import OK

CHECKOUT: Final = Path(__file__).parents[2]
DEPLOY: Final = CHECKOUT / "deploy"
SHORT: Final = (
    "--synthetic-input-tokens-mean",
    "60",
    "--output-tokens-mean",
    "40",
    "--no-probe",
    "--selftest",
    "off",
)


def instructions(text: str) -> list[tuple[str, str]]:
    """(instruction, what follows) of a Dockerfile, over continued lines."""
    joined = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE))
    return [
        (word.upper(), rest.strip())
        for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)
    ]


STEPS: Final = instructions((DEPLOY / "Dockerfile").read_text())
ENV: Final = dict(pair.split("=") for word, rest in STEPS if word == "ENV" for pair in rest.split())
COPIED: Final = [
    source
    for word, rest in STEPS
    if word == "COPY"
    for source in re.sub(r"--\S+ ", "", rest).split()[:-1]
]


def last(name: str) -> str:
    return [rest for word, rest in STEPS if word == name][-1]


def test_the_file_says_what_a_cluster_needs() -> None:
    setup = ConfigParser()
    setup.read(CHECKOUT / "setup.cfg")
    (oldest,) = re.findall(r"locust >= ([\d.]+)", setup["options"]["install_requires"])
    assert last("FROM") == "base"
    base, version = STEPS[0][1].removesuffix(" AS base").split(":")
    assert base == "locustio/locust"
    assert tuple(map(int, version.split("."))) >= tuple(map(int, oldest.split(".")))
    assert re.fullmatch(r"[1-9]\d*", last("USER"))  # a name cannot be checked by runAsNonRoot
    assert last("STOPSIGNAL") == "SIGTERM"
    assert json.loads(last("ENTRYPOINT")) == ["entrypoint"]
    installed = next(rest for word, rest in STEPS if word == "RUN" and "pip install" in rest)
    extras = re.findall(r"\[(.+?)\]", installed)[0].split(",")
    assert set(extras) <= set(setup["options.extras_require"])
    assert Path(ENV["LOCUST_LLM_REPORT_DIR"]).parts[1] in installed  # it is made, and written to


def test_its_wheel_has_the_native_reader_or_the_build_fails() -> None:
    """Its base has no compiler, and without one the installation goes on with the slower reader."""
    compiler, build = [rest for word, rest in STEPS if word == "RUN"][:2]
    assert " gcc " in compiler
    assert " && " in build
    assert "_reader.abi3.so" in build.split(" && ")[-1]


def test_what_is_copied_is_there_and_not_ignored() -> None:
    ignored = (CHECKOUT / ".dockerignore").read_text().splitlines()
    assert sorted(line[1:] for line in ignored if line.startswith("!")) == sorted(COPIED)
    assert ignored[1] == "*"
    for source in COPIED:
        assert (CHECKOUT / source).exists()
    assert os.access(DEPLOY / "entrypoint", os.X_OK)


@pytest.mark.parametrize(
    ("words", "mounted", "expected"),
    [
        ("run --headless", False, "run --headless"),
        ("--master -u 4", False, "run --master -u 4"),
        ("--master -u 4", True, "run -f locustfile.py --master -u 4"),
        ("run --master", True, "run --master"),
        ("probe --host x", False, "probe --host x"),
        ("", False, ""),
    ],
)
def test_operators_words_are_those_of_a_run(
    words: str, mounted: bool, expected: str, tmp_path: Path
) -> None:
    (tmp_path / "locust-llm").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "locust-llm").chmod(0o755)
    if mounted:
        (tmp_path / "locustfile.py").write_text("")
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        [DEPLOY / "entrypoint", *words.split()],
        cwd=tmp_path,
        env=path,
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"{expected}\n"


# -- its steps -------------------------------------------------------------------------------------


class Image(NamedTuple):
    """A folder that stands for the image: ``venv``, ``home``, and what may be written to,
    ``reports`` and ``tmp``."""

    root: Path

    def start(self, *words: str, log: Path, **env: str) -> "subprocess.Popen[bytes]":
        """The entry point as the image's user, with nothing else to write to than its two folders,
        and no capability."""
        places = {value: str(self.root) + value for value in ("/reports", "/tmp")}
        given = {
            name: re.sub("^/(reports|tmp)", lambda found: places[found[0]], value)
            for name, value in ENV.items()
        }
        user = last("USER")
        inside = [
            "setpriv",
            f"--reuid={user}",
            f"--regid={user}",
            "--clear-groups",
            "--no-new-privs",
            "--bounding-set=-all",
        ]
        script = "set -e; mount --make-rprivate /; " + "".join(
            f"mount --bind {shlex.quote(place)} {shlex.quote(place)}; " for place in places.values()
        )
        script += self._readable(Path(sys.base_prefix)) + self._readable(Path(sys.prefix))
        script += (
            f"mount -o remount,bind,ro /; cd {self.root}/home; exec {shlex.join(inside)} "
            f"entrypoint {shlex.join(words)}"
        )
        path = f"{self.root}/venv/bin:{self.root}:{os.environ['PATH']}"
        with log.open("wb") as file:
            return subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", script],
                stdout=file,
                stderr=file,
                env={"PATH": path, **given, **env},
            )

    def _readable(self, place: Path) -> str:
        """Python may be in a folder that is root's alone, which no image has: an empty one with the
        way to it instead."""
        hidden = next((one for one in reversed(place.parents) if not one.stat().st_mode & 1), None)
        if hidden is None:
            return ""
        aside, there = self.root / "aside" / place.name, shlex.quote(str(place))
        aside.mkdir(parents=True, exist_ok=True)
        return (
            f"mount --bind {there} {aside}; mount -t tmpfs -o mode=755 none "
            f"{shlex.quote(str(hidden))}; "
            f"mkdir -p {there}; mount --bind {aside} {there}; "
        )


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """The wheel of what is copied, in an environment whose other packages are those of this one."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("a read-only root takes a mount namespace, which is not allowed here")
    root = Path(tempfile.mkdtemp(prefix="locust-llm-image-", dir="/var/tmp"))
    try:
        root.chmod(0o755)
        for name in ("home", "reports", "tmp"):
            (root / name).mkdir()
        for name in ("reports", "tmp"):
            os.chown(root / name, int(last("USER")), 0)
        shutil.copy(DEPLOY / "entrypoint", root / "entrypoint")
        for source in COPIED:
            copy = shutil.copytree if (CHECKOUT / source).is_dir() else shutil.copy
            (root / "src" / source).parent.mkdir(parents=True, exist_ok=True)
            copy(CHECKOUT / source, root / "src" / source)
        subprocess.run([sys.executable, "-m", "venv", root / "venv"], check=True)
        pip = [root / "venv/bin/python", "-m", "pip", "-q", "--disable-pip-version-check"]
        subprocess.run(
            [*pip, "wheel", "--no-deps", "--wheel-dir", root / "wheels", root / "src"], check=True
        )
        subprocess.run([*pip, "install", "--no-deps", *(root / "wheels").glob("*.whl")], check=True)
        (site,) = (root / "venv").glob("lib/*/site-packages")
        (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
        yield Image(root)
    finally:
        shutil.rmtree(root)


def requests_of(folder: Path) -> int:
    path = folder / "profile_export.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.slow
def test_a_pods_sigterm_drains_as_another_user_on_a_read_only_root(
    image: Image, tmp_path: Path
) -> None:
    folder = image.root / "reports" / "run"
    with start_simulator("--ttft-ms", "50", "--itl-ms", "10") as url:
        variables = {
            "LOCUST_HOST": url,
            "LOCUST_USERS": "4",
            "LOCUST_RUN_TIME": "5m",
            "LOCUST_LLM_SLO": "ttft p50 < 60s",
            "LOCUST_LLM_INCONCLUSIVE": "pass",
        }
        run = image.start("--headless", *SHORT, log=tmp_path / "log", **variables)
        text = lambda: (tmp_path / "log").read_text()  # noqa: E731
        while requests_of(folder) < 4:
            assert run.poll() is None, text()
            time.sleep(0.05)
        run.send_signal(signal.SIGTERM)
        assert run.wait(60) == ExitStatus.OK, text()
    assert folder.stat().st_uid == int(last("USER"))
    assert (folder / "report.html").stat().st_size
    assert set(read(folder).requests.outcome) == {OK}
    assert not list((image.root / "home").iterdir())


def of_jobs() -> tuple[list[str], list[str], dict[str, str]]:
    """(words of the master, of a worker, variables of both) as Jobs have them; what the ConfigMap
    has."""
    *_, master, worker = yaml.safe_load_all(
        (DEPLOY / "kubernetes" / "distributed.yaml").read_text()
    )
    (one,), (other,) = (job["spec"]["template"]["spec"]["containers"] for job in (master, worker))
    expected = {one["name"]: "2" for one in one["env"] if one["name"] == "LOCUST_EXPECT_WORKERS"}
    load = {
        "LOCUST_HOST": "HOST",
        "LOCUST_USERS": "4",
        "LOCUST_RUN_TIME": "5s",
        "LOCUST_LLM_SLO": "error_rate > 99%",
    }
    return one["args"], other["args"], {**expected, **load}


def of_v1() -> tuple[list[str], list[str], dict[str, str]]:
    """As k8s-operator has them: its own words, then the same args for both."""
    spec = yaml.safe_load(
        (DEPLOY / "kubernetes" / "locusttest-v1" / "locusttest.yaml").read_text()
    )["spec"]
    args = shlex.split(spec["args"])
    return ["--master", *args], ["--worker", "--master-host", "MASTER", *args], {}


def of_v2() -> tuple[list[str], list[str], dict[str, str]]:
    """As locust-k8s-operator has them: the words of the command, its own, then the args of each."""
    *_, test = yaml.safe_load_all(
        (DEPLOY / "kubernetes" / "locusttest-v2" / "locusttest.yaml").read_text()
    )
    master, worker = test["spec"]["master"], test["spec"]["worker"]
    own = [
        "--master",
        "--master-port=5557",
        f"--expect-workers={worker['replicas']}",
        "--autostart",
    ]
    own += [
        "--autoquit",
        str(master["autoquit"]["timeout"]),
        "--enable-rebalancing",
        "--only-summary",
    ]
    join = ["--worker", "--master-port=5557", "--master-host=MASTER"]
    words = [
        [*one["command"].split(), *more, *one["extraArgs"]]
        for one, more in ((master, own), (worker, join))
    ]
    return words[0], words[1], {}


@pytest.mark.parametrize(
    "passed",
    [
        pytest.param(of_v1, marks=pytest.mark.slow),
        pytest.param(of_v2, marks=pytest.mark.full),
        pytest.param(of_jobs, marks=pytest.mark.full),
    ],
)
def test_what_pods_are_told_is_a_run_over_two_workers_with_its_verdict(
    passed: Callable[[], tuple[list[str], list[str], dict[str, str]]], image: Image, tmp_path: Path
) -> None:
    port = str(free_port())
    with start_simulator("--ttft-ms", "50", "--itl-ms", "10") as url:
        changed = {
            "--host": url, "--users": "4", "--run-time": "5s", "--slo": "error_rate > 99%",
            "--expect-workers": "2",
            "--master-host": "127.0.0.1", "--master-port": port,
        }  # fmt: skip

        def here(words: list[str]) -> list[str]:
            split = [word.partition("=") for word in words]
            return [
                flag + equals + (changed.get(flag, value) if equals else "")
                for flag, equals, value in split
            ]

        to_master, to_worker, env = passed()
        env |= {"LOCUST_HOST": url} if env else {}
        to_worker = here(["127.0.0.1" if word == "MASTER" else word for word in to_worker])
        to_master = [
            *here(to_master),
            *SHORT,
            "--web-port",
            str(free_port()),
            "--master-bind-port",
            port,
        ]
        workers = [
            image.start(*to_worker, "--master-port", port, log=tmp_path / f"worker-{number}", **env)
            for number in "12"
        ]
        reports = image.root / "reports" / passed.__name__
        master = image.start(
            *to_master, log=tmp_path / "master", LOCUST_LLM_REPORT_DIR=str(reports), **env
        )
        assert master.wait(120) == ExitStatus.RULE_FAILED, (tmp_path / "master").read_text()
        assert [worker.wait(60) for worker in workers] == [0, 0]
    assert requests_of(reports)
