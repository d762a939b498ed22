"""Inline assets: scripts, styles and data inside an HTML file that needs no network.

The page's policy names its script and style by hash, so nothing else can run.
"""

import re
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Final

import msgspec

from locust_llm.text.format import clean_line

CHART_SCRIPTS: Final = (
    "uPlot.iife.min.js", "chart_format.js", "chart_scale.js", "chart_labels.js", "chart_shapes.js",
    "draw_chart.js", "chart_tools.js",
)  # fmt: skip
"""The scripts that draw plots, in this order; each file uses those before it."""
_CONTROL: Final = re.compile(r"(\\[^bfrtnu]|\\u00[2-9a-f]|\\u[1-9a-f])|\\(?:[bfrtn]|u00[01].)")
"""An escaped control character of JSON. Any other escape is the group."""


@cache
def read_static(names: Sequence[str]) -> str:
    """The text of these files of ``static``, one after the other."""
    folder = files("locust_llm").joinpath("static")
    return "\n".join(folder.joinpath(name).read_text("utf-8") for name in names)


def hash_source(text: str) -> str:
    """The hash by which a Content-Security-Policy names an inline script or style (CSP Level 3,
    hash-source)."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def make_policy(script: str, style: str) -> str:
    """The policy of a page with this script and style, either of them empty where there is none."""
    allowed = [f"script-src {hash_source(script)}"] if script else []
    allowed += [f"style-src {hash_source(style)}"] if style else []
    # the icon: without one a browser asks the server for it
    rest = ("img-src data:", "base-uri 'none'", "form-action 'none'")
    return "; ".join(("default-src 'none'", *allowed, *rest))


def embed_json(described: object) -> str:
    """JSON in a script. A label may hold control characters and direction marks, which a browser
    would not show as text."""
    data = msgspec.json.encode(described).decode().replace("<", "\\u003c")
    if not data.isprintable():
        data = clean_line(data)
    return _CONTROL.sub(lambda match: match[1] or " ", data)
