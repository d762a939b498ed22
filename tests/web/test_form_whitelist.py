"""Whitelist: a form sets what the page shows, and no other option of Locust, of ours or of a
locustfile, by any spelling."""

import json
import os
import random
from argparse import Namespace
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final

import locust

import pytest
from support import unpatched_locust  # noqa: F401  before the rest
from support.tiny_server import TinyServer, tiny_server
from support.web_pages import Page
from support.wild_options import VALUES, spelt

from locust_llm.locust_adapter.command_line_parser import OPTIONS
from locust_llm.web.form_whitelist import spell_in_camel_case

OWN: Final = {
    "rounds": 3,
    "share": 0.5,
    "colour": "red",
    "shouts": True,
    "words": ["a", "b"],
    "anything": None,
    "top1": 5,
}
"""Of the locustfile, as the page shows them."""
HIDDEN: Final = {"inner": "i", "my_secret": "s3cret"}
"""Not in the page, and secret."""
OURS: Final = {option.dest for option in OPTIONS if option.in_form}
MAY_CHANGE: Final = {
    *OURS, *OWN, "num_users", "spawn_rate", "host", "run_time", "user_classes", "input_file",
    "llm_users", "llm_run_time", "llm_rules", "llm_spawn_rate",
}  # fmt: skip


class RealPage(Page):
    """Locust's own view is asked too; its users do not begin."""

    def __init__(self, *words: str) -> None:
        super().__init__("--no-probe", "--no-server-metrics", "--spawn-rate", "1", *words)
        vars(self.options).update(OWN | HIDDEN)
        self.runner.start = lambda *how, **more: None

    @property
    def swarm(self) -> Any:
        """Of ours, behind the wrappers of Locust's login."""
        cells = self.ui.app.view_functions["locust.swarm"].__wrapped__.__closure__
        return next(
            cell.cell_contents for cell in cells if hasattr(cell.cell_contents, "_whitelist")
        )

    def _swarm(self) -> Any:
        super()._swarm()
        return self.locusts_swarm()

    def post(self, **how: Any) -> Any:
        return self.client.post("/swarm", **how)


@pytest.fixture
def server() -> Iterator[TinyServer]:
    with tiny_server() as server:
        server.start()
        yield server


@pytest.fixture
def page(server: TinyServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealPage]:
    def flags(parser: Any, **more: Any) -> None:
        for name, value in OWN.items():
            parser.add_argument(
                f"--{name}", default=value, choices=["red", "blue"] if name == "colour" else None
            )
        parser.add_argument("--inner", default="i", include_in_web_ui=False)
        parser.add_argument("--my-secret", default="s3cret", is_secret=True)

    monkeypatch.setattr(
        "locust_llm.locust_adapter.command_line_parser._secret_flags", {"my_secret"}
    )
    # those of locustfiles that other tests have loaded may be of the same names
    monkeypatch.setattr(locust.events.init_command_line_parser, "_handlers", [flags])
    page = RealPage("--host", server.url)
    yield page
    page.runner.greenlet.kill(block=True)


BASE: Final = {"user_count": "2", "spawn_rate": "1"}


def test_what_the_page_shows_can_be_set(page: RealPage, server: TinyServer) -> None:
    form = {
        **BASE, "host": server.url, "run_time": "20s", "output_tokens_mean": "7", "dataset": "",
        "profile": "",
        "rounds": "4", "share": "0.25", "colour": "blue", "shouts": "false", "words": "c,d",
        "anything": "x",
        "top_1": "6",  # as Locust's own page spells it
    }  # fmt: skip
    assert page.post(data=form).get_json() == {
        "success": True, "message": "Swarming started", "host": server.url,
    }  # fmt: skip
    values = vars(page.options)
    assert [values[name] for name in OWN] == [4, 0.25, "blue", False, ["c", "d"], "x", 6]
    assert (values["num_users"], values["run_time"], values["output_tokens_mean"]) == (2, 20, 7.0)
    assert page.asked[0]["words"] == ["c,d"]


ELSEWHERE: Final = {
    "html_file": "--html-file works on the command line only",
    "json_file": "--json-file works on the command line only",
    "processes": "--processes works on the command line only",
    "exit_code_on_error": "--exit-code-on-error works on the command line only",
    "HTML-FILE": "--html-file works on the command line only",
    "--html-file": "--html-file works on the command line only",
    "insecure": "--insecure works on the command line only",
    "api_key_file": "--api-key-file works on the command line only",
    "api_key_command": "--api-key-command works on the command line only",
    "header": "--header works on the command line only",
    "ca_cert": "--ca-cert works on the command line only",
    "metrics_url": "--metrics-url works on the command line only",
    "llm_rules": "the form of a run has no field 'llm_rules'",
    "inner": "--inner works on the command line only",
    "num_users": "--num-users works on the command line only",
    "profile": "--profile works on the command line only",
    "user_classes": "--user-classes works on the command line only",
    "my_secret": "--my-secret is secret: set it on the command line or in the environment, not on a page",
    "MY-SECRET": "--my-secret is secret: set it on the command line or in the environment, not on a page",
    "llm_secrets": "the form of a run has no field 'llm_secrets'",
    "shape_class": "the form of a run has no field 'shape_class'",
    "input_file": "--input-file works on the command line only",
    "Output-Tokens-Mean": "the form of a run has no field 'Output-Tokens-Mean': did you mean "
    "output_tokens_mean?",
    "x" * 99: f"the form of a run has no field {'x' * 60 + '...'!r}",
}


@pytest.mark.parametrize(("name", "why"), ELSEWHERE.items(), ids=[name[:20] for name in ELSEWHERE])
@pytest.mark.parametrize("kind", ["form", "multipart"])
def test_what_it_does_not_show_cannot(page: RealPage, name: str, why: str, kind: str) -> None:
    before = dict(vars(page.options))
    more = {"content_type": "multipart/form-data"} if kind == "multipart" else {}
    answer = page.post(data={**BASE, name: "50"}, **more)
    assert answer.get_json() == {"success": False, "message": why, "host": page.environment.host}
    assert vars(page.options) == before
    assert page.view.refusal == f"The run cannot start: {why}"
    assert page.asked == []
    assert page.post(data=BASE).get_json()["success"]  # the next run


def test_no_secret_flag_is_in_a_page(page: RealPage) -> None:
    for path in ("/?tab=stats", "/llm/new"):
        text = page.client.get(path).text
        assert ("rounds" in text, "my_secret" in text, "s3cret" in text) == (True, False, False), (
            path
        )


WRONG: Final[list[tuple[dict[str, Any], str]]] = [
    ({"query_string": {"html_file": "x"}, "data": BASE},
        "the form of a run must send its fields in the body, not in the address"),
    ({"json": BASE},
        "a run must be started by a form (application/x-www-form-urlencoded), got "
        "'application/json'"),
    ({"data": b"user_count=1", "content_type": "text/plain"},
     "a run must be started by a form (application/x-www-form-urlencoded), got 'text/plain'"),
    ({"data": {**BASE, "model": ["a", "b"]}},
        "the form of a run has the field 'model' 2 times: send it once"),
    ({"data": {**BASE, "user_count": ["1", "50"]}},
        "the form of a run has the field 'user_count' 2 times: send it once"),
    ({"data": {**BASE, "slo": "x" * 32769}},
        "the field 'slo' is too long: at most 32,768 characters"),
    ({"data": {**BASE, "colour": "green"}}, "--colour must be one of red, blue, got 'green'"),
    ({"data": {**BASE, "rounds": "many"}}, "--rounds must be a whole number, got 'many'"),
    ({"data": {**BASE, "spawn_rate": "fast"}}, "-r must be a number, got 'fast'"),
    ({"data": {**BASE, "spawn_rate": "-1"}}, "-r must be above 0 and at most 1000000, got -1"),
]  # fmt: skip


@pytest.mark.parametrize(("how", "why"), WRONG, ids=range(len(WRONG)))
def test_a_form_is_one_form_with_each_field_once(
    page: RealPage, how: dict[str, Any], why: str
) -> None:
    before = dict(vars(page.options))
    answer = page.post(**how)
    assert (answer.status_code, answer.get_json()["message"]) == (200, why)
    assert vars(page.options) == before


def test_a_form_with_a_file_is_none(page: RealPage) -> None:
    import io

    answer = page.post(
        data={**BASE, "model": (io.BytesIO(b"x"), "m")}, content_type="multipart/form-data"
    )
    assert answer.get_json()["message"] == "the form of a run takes no files, got 'model'"


# -- the class picker ------------------------------------------------------------------------------


@pytest.fixture
def picker(page: RealPage) -> RealPage:
    def ask(user: Any) -> None:
        pass

    classes = {
        name: type(name, (locust.User,), {"tasks": [ask], "host": None}) for name in ("Ann", "Bob")
    }
    environment: Any = page.environment
    environment.available_user_classes = classes
    environment.available_user_tasks = {name: [ask] for name in classes}
    environment.available_shape_classes = {
        "Steep": SimpleNamespace(runner=None, use_common_options=True)
    }
    page.ui.userclass_picker_is_active = page.swarm._whitelist._picks_classes = True
    return page


def test_the_class_picker_picks_what_there_is(picker: RealPage) -> None:
    for more, why in (
        ({"user_classes": ["Ann", "Eve"]}, "user_classes: there is no 'Eve'; there is Ann, Bob"),
        ({"shape_class": "Flat"}, "shape_class: there is no 'Flat'; there is Default, Steep"),
        ({"html_file": "x"}, "--html-file works on the command line only"),
    ):
        assert picker.post(data={**BASE, **more}).get_json()["message"] == why
    assert picker.post(data={**BASE, "user_classes": ["Bob"], "shape_class": "Default"}).get_json()[
        "success"
    ]
    assert picker.options.user_classes == ["Bob"]
    assert [one.__name__ for one in picker.environment.user_classes] == ["Bob"]


BAD_EDITS: Final = [
    ('{"user_class_name": "Ann", "__init__": 1}', "Object contains unknown field `__init__`"),
    ('{"user_class_name": "Ann", "wait_time": 1}', "Object contains unknown field `wait_time`"),
    ('{"user_class_name": "Eve"}', "user_class_name: there is no 'Eve'; there is Ann, Bob"),
    ('{"user_class_name": "Ann", "weight": "many"}', "Expected `float`, got `str` - at `$.weight`"),
    ('{"user_class_name": "Ann", "weight": -1}',
        "the weight of a user class must be at least 0, got -1"),
    ('{"user_class_name": "Ann", "fixed_count": -1}',
        "the fixed count of a user class must be at least 0, got -1"),
    ('{"user_class_name": "Ann", "tasks": ["exec"]}', "tasks: there is no 'exec'; there is ask"),
    ("[" * 100_000, "a change of a user class must be a JSON object with"),
    ("\xff", "a change of a user class must be a JSON object with"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "why"), BAD_EDITS, ids=range(len(BAD_EDITS)))
def test_a_user_class_has_no_other_attribute(picker: RealPage, body: str, why: str) -> None:
    answer = picker.client.post("/user", data=body.encode("latin-1"))
    assert (answer.status_code, why in answer.text) == (422, True), answer.text
    ann: Any = (picker.environment.available_user_classes or {})["Ann"]
    assert (ann.weight, ann.fixed_count, ann.host, len(ann.tasks)) == (1, 0, None, 1)


def test_a_user_class_can_be_changed(picker: RealPage) -> None:
    edit = {"user_class_name": "Ann", "host": "", "weight": 3, "fixed_count": 2, "tasks": ["ask"]}
    assert picker.client.post("/user", data=json.dumps(edit)).status_code == 201
    ann: Any = (picker.environment.available_user_classes or {})["Ann"]
    assert (ann.weight, ann.fixed_count) == (3, 2)


def test_no_user_class_takes_the_key_elsewhere(
    picker: RealPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    picker.swarm._open = True
    edit = {"user_class_name": "Ann", "host": "http://elsewhere:1"}
    answer = picker.client.post("/user", data=json.dumps(edit))
    assert (answer.status_code, "go only to the server of the command line" in answer.text) == (
        422,
        True,
    )


# -- any name --------------------------------------------------------------------------------------


def attack(page: RealPage, draw: random.Random, names: list[str]) -> Any:
    fields = [(name, value) for name, value in BASE.items() if draw.random() < 0.9]
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        fields += [(spelt(draw, draw.choice(names)), draw.choice(VALUES))] * draw.choice(
            (1, 1, 1, 2)
        )
    draw.shuffle(fields)
    several: dict[str, list[str]] = {}
    for name, value in fields:
        several.setdefault(name, []).append(value.encode("utf-8", "replace").decode())
    path = draw.choice(
        ("/swarm",) * 8 + ("/user", "/llm/gate", "/stop", "/stats/reset", "/llm/datasets")
    )
    kind = draw.choice((*["form"] * 7, "multipart", "json", "address", "both"))
    if kind == "json":
        return page.client.post(path, json=dict(several))
    if kind == "address":
        return page.client.post(path, query_string=several)
    if kind == "multipart":
        return page.client.post(path, data=several, content_type="multipart/form-data")
    return page.client.post(path, data=several, query_string=several if kind == "both" else None)


def everything_but(options: Namespace, names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in vars(options).items() if name not in names}


@pytest.mark.parametrize(
    ("seed", "tries"),
    [(1, 150), *(pytest.param(seed, 2000, marks=pytest.mark.full) for seed in range(2, 6))],
)
def test_no_name_by_any_spelling_sets_what_the_page_does_not_show(
    seed: int, tries: int, page: RealPage
) -> None:
    draw = random.Random(f"option names {seed}")
    names = [
        *vars(page.options),
        *OWN,
        *HIDDEN,
        "llm_secrets",
        "__class__",
        "__dict__",
        "environment",
        "web_ui",
    ]
    kept, there = everything_but(page.options, MAY_CHANGE), sorted(os.listdir("."))
    started = 0
    for number in range(tries):
        before = dict(vars(page.options))
        answer = attack(page, draw, names)
        assert answer.status_code < 500, (number, answer.text)
        assert "Error: " not in answer.text, (number, answer.text)
        done = (
            answer.is_json
            and answer.get_json() is not None
            and answer.get_json().get("success") is True
        )
        started += bool(done)
        if not done:
            assert vars(page.options) == before, number
        assert everything_but(page.options, MAY_CHANGE) == kept, number
    assert page.post(data={**BASE, "slo": "", "sweep": "", "extra_inputs": ""}).status_code == 200
    assert sorted({*os.listdir(".")} - {"reports"}) == there
    assert started > tries / 50  # it reaches Locust's own view


@pytest.mark.parametrize(
    ("name", "spelt"),
    [
        ("rounds", "rounds"),
        ("my_flag", "my_flag"),
        ("top1", "top_1"),
        ("a_1", "a_1"),
        ("p95_ms", "p_95_ms"),
        ("X", "X"),
    ],
)
def test_names_as_locusts_page_spells_them(name: str, spelt: str) -> None:
    """Its JavaScript: ``/_([a-z0-9])/g`` to capitals, then ``/([a-z0-9])([A-Z0-9])/g`` to
    ``$1_$2``."""
    assert spell_in_camel_case(name) == spelt
