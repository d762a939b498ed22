"""One thought a statement: no comprehension in another one or over two loops, no conditional
expression in another one, no assignment of several values of which one is computed."""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

import locust_llm

PACKAGE: Final = Path(locust_llm.__file__).parent
COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
COMPUTED: Final = (ast.Call, ast.BinOp, ast.IfExp, ast.Compare, ast.BoolOp)


def is_nested_comprehension(node: ast.AST) -> bool:
    if not isinstance(node, COMPREHENSIONS):
        return False
    inner = [one for one in ast.walk(node) if isinstance(one, COMPREHENSIONS) and one is not node]
    return len(node.generators) > 1 or bool(inner)


def is_chained_conditional(node: ast.AST) -> bool:
    return isinstance(node, ast.IfExp) and (
        isinstance(node.body, ast.IfExp) or isinstance(node.orelse, ast.IfExp)
    )


def is_computed_tuple_assignment(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.value, ast.Tuple)
        and any(isinstance(value, COMPUTED) for value in node.value.elts)
    )


def find_lines(is_one: Callable[[ast.AST], bool], source: str) -> Iterator[int]:
    for node in ast.walk(ast.parse(source)):
        if is_one(node):
            yield getattr(node, "lineno", 0)


@pytest.mark.parametrize(
    ("is_one", "bad", "good"),
    [
        (
            is_nested_comprehension,
            "x = [a for b in c for a in b]\ny = [{d for d in e} for e in f]",
            "x = [a for a in b]",
        ),
        (is_chained_conditional, "x = 1 if a else 2 if b else 3", "x = 1 if a else 2"),
        (is_computed_tuple_assignment, "x, y = f(), 1", "x, y = a, 1\nx, y = f()"),
    ],
)
def test_the_package_has_no_such_statement(
    is_one: Callable[[ast.AST], bool], bad: str, good: str
) -> None:
    assert [*find_lines(is_one, bad)] == [*range(1, bad.count("\n") + 2)]
    assert [*find_lines(is_one, good)] == []
    files = [*PACKAGE.rglob("*.py")]
    assert len(files) > 300
    found = list[str]()
    for path in files:
        lines = find_lines(is_one, path.read_text("utf-8"))
        found += [f"{path.relative_to(PACKAGE)}:{line}" for line in lines]
    assert found == []
