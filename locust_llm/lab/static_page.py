"""Static page: renders results as one HTML file without scripts, in the style of the reports. Every
text is escaped."""

from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from locust_llm.text.format import clean_line

STYLES: Final = ("plots.css", "page.css")


def render_page(template: str, own: str, **what: object) -> str:
    """Renders the named ``template``. ``own`` is the style of this page alone. The page's policy
    contains the hash of the whole style."""
    style = (
        "\n".join(
            files("locust_llm").joinpath("static", style).read_text("utf-8") for style in STYLES
        )
        + own
    )
    digest = b64encode(sha256(style.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; "
        f"form-action 'none'"
    )
    return _templates().get_template(template).render(style=Markup(style), policy=policy, **what)


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("locust_llm.lab", "templates"), autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: clean_line(value) if type(value) is str else value,
    )  # fmt: skip
