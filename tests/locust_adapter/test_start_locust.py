"""Start of Locust: the files of the installed packages are read once while modules are imported, and
the web UI is imported when it is made."""

from support import unpatched_locust  # noqa: F401  before the rest

# isort: split
import sys
from importlib import metadata
from importlib.metadata import EntryPoint, EntryPoints

from locust import web
from locust.env import Environment

import pytest

from locust_llm.locust_adapter.start_locust import (
    WEB_UI,
    entry_points_read_once,
    make_web_ui,
    web_ui_on_demand,
)


def test_the_packages_are_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    both = EntryPoints([EntryPoint("a", "x:y", "of_gevent"), EntryPoint("b", "x:z", "of_others")])
    looks = list[dict[str, str]]()

    def look(**which: str) -> EntryPoints:
        looks.append(which)
        return both.select(**which)

    monkeypatch.setattr(metadata, "entry_points", look)
    with entry_points_read_once():
        assert [found.name for found in metadata.entry_points(group="of_gevent")] == ["a"]
        assert len(metadata.entry_points(group="of_nobody")) == 0
    assert looks == [{}]
    assert metadata.entry_points(group="of_others").names == {"b"}
    assert looks == [{}, {"group": "of_others"}]


def test_locust_gets_what_makes_the_web_ui_and_of_anything_else_the_real_thing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, WEB_UI, web)  # the real one comes back in both places
    monkeypatch.setattr("locust.web", web)
    with web_ui_on_demand():
        from locust.web import WebUI  # as locust.env does

        assert WebUI is make_web_ui
    assert WEB_UI not in sys.modules
    with web_ui_on_demand():
        from locust.web import InputField

        assert InputField is sys.modules[WEB_UI].InputField
    assert sys.modules[WEB_UI].WebUI is not make_web_ui


def test_the_web_ui_that_is_made_is_locusts(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[tuple[object, ...]]()
    monkeypatch.setattr(web, "WebUI", lambda *args, **kw: made.append((args, kw)))
    monkeypatch.setattr("locust.env.WebUI", make_web_ui)
    Environment().create_web_ui(host="127.0.0.1", port=1)
    assert [args[1:] for args, _ in made] == [("127.0.0.1", 1)]
