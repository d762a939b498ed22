"""Wild options: spells names of options in every way, and draws values that no option accepts."""

import random
from collections.abc import Callable
from typing import Final

VALUES: Final = (
    "true", "false", "0", "1", "50", "-1", "2.5", "nan", "1e999", "", " ", "none", "victim",
    "/etc/passwd", "../x",
    "my_secret", "a,b", "[1]", "{}", '{"a": 1}', "\0", "\udcff", "Ann", "Default", "<script>",
    "ttft p95 < 1s",
    "error_rate within 5% of /etc", "x" * 5000,
)  # fmt: skip


def spelt(draw: random.Random, name: str) -> str:
    """Returns the name, or one that a careless parser would accept."""
    ways: list[Callable[[], str]] = [
        lambda: name, lambda: name, lambda: name, name.upper, name.title,
        lambda: name.replace("_", "-"),
        lambda: f"--{name.replace('_', '-')}", lambda: f" {name}", lambda: f"{name}\0",
        lambda: f"{name}[]",
        lambda: name.replace("i", "ı"), lambda: f"options.{name}", lambda: f"{name}\r\nhost",
    ]  # fmt: skip
    return draw.choice(ways)()
