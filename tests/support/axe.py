"""axe-core: checks a page's accessibility (WCAG A and AA, best practices)."""

from pathlib import Path
from typing import Any

import pytest


def violations(page: Any) -> list[tuple[str, str, str]]:
    """Returns (rule, impact, the first element of each). The script is in the wheel of
    axe-playwright-python. Without it the test is skipped."""
    package = pytest.importorskip(
        "axe_playwright_python", reason="needs the package axe-playwright-python"
    )
    page.evaluate(f"{(Path(package.__file__).parent / 'axe.min.js').read_text()}; 0")
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
    return [(one["id"], one["impact"], one["nodes"][0]["html"][:200]) for one in found]
