"""The native part is built so that what overruns a buffer ends the process; without these flags
where a compiler has not got them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.runs import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not shutil.which("cc") or not shutil.which("readelf"),
        reason="needs a C compiler and readelf",
    ),
]
REFUSES = """#!/bin/sh
case "$*" in *{flag}*) echo "unknown option" >&2; exit 1;; esac
exec cc "$@"
"""


def build(folder: Path, **environment: str) -> Path:
    """The shared object, made from a copy of what setup.py reads."""
    source = folder / "source"
    native = Path("locust_llm") / "client" / "reader"
    shutil.copytree(ROOT / native, source / native, ignore=shutil.ignore_patterns("*.so"))
    for name in ("setup.py", "setup.cfg", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    shutil.copy(ROOT / "locust_llm" / "__init__.py", source / "locust_llm")
    built, objects = str(folder / "built"), str(folder / "objects")
    command = [
        sys.executable,
        "setup.py",
        "-q",
        "build_ext",
        "--build-lib",
        built,
        "--build-temp",
        objects,
    ]
    subprocess.run(
        command, cwd=source, env={**os.environ, **environment}, check=True, capture_output=True
    )
    (found,) = (folder / "built").rglob("_reader*.so")
    return found


def of_elf(path: Path, *words: str) -> str:
    return subprocess.run(
        ["readelf", "-W", *words, str(path)], check=True, capture_output=True, text=True
    ).stdout


def test_it_has_a_stack_protector_and_no_table_that_can_be_written(tmp_path: Path) -> None:
    compiler, words = tmp_path / "compiler", tmp_path / "words"
    compiler.write_text(f'#!/bin/sh\necho "$*" >> {words}\nexec cc "$@"\n')
    compiler.chmod(0o755)
    built = build(tmp_path, CC=str(compiler), LDSHARED=f"{compiler} -shared")
    assert "-D_FORTIFY_SOURCE=2" in words.read_text()
    assert "__stack_chk_fail" in of_elf(built, "--dyn-syms")
    assert "BIND_NOW" in of_elf(built, "-d")
    assert "GNU_RELRO" in of_elf(built, "-l")


@pytest.mark.parametrize("flag", ["-fstack-protector-strong", "relro"])
def test_a_compiler_without_them_builds_it_all_the_same(tmp_path: Path, flag: str) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text(REFUSES.format(flag=flag))
    compiler.chmod(0o755)
    built = build(tmp_path, CC=str(compiler), LDSHARED=f"{compiler} -shared")
    assert "__stack_chk_fail" not in of_elf(built, "--dyn-syms")
