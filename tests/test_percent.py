"""One form of a percentage: ``5%``, in every text that code writes; comments and docstrings are
prose."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import locust_llm

PACKAGE = Path(locust_llm.__file__).parent


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """String constants and the literal parts of f-strings, each with what follows a figure in
    it."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            figures = "".join(
                "0" if isinstance(part, ast.FormattedValue) else part.value for part in node.values
            )  # type: ignore[attr-defined]
            yield node.lineno, figures
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose
        ):
            yield node.lineno, node.value


@pytest.mark.slow
def test_a_percent_sign_stands_at_its_figure() -> None:
    spaced = re.compile(r"\d %(?![\w(])|^ %$")
    found = [
        f"{file.relative_to(PACKAGE)}:{line} {text!r}"
        for file in sorted(PACKAGE.rglob("*.py"))
        for line, text in texts(ast.parse(file.read_text()))
        if spaced.search(text)
    ]
    found += [
        str(file)
        for file in PACKAGE.rglob("*.js")
        if re.search(r"\} %`|\d %[\"'`]", file.read_text())
    ]
    assert found == []
    # it would see one
    assert list(filter(spaced.search, (text for _, text in texts(ast.parse("f'{x} % of'")))))
