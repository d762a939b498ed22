"""Start of Locust: the files of the installed packages are read once while modules are imported."""

from importlib import metadata
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from locust_llm.locust_adapter.start_locust import entry_points_read_once


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
