"""Routes: this library in Locust's web UI: the form of a run, the live page, reports of past runs,
a tab of values.

It uses Locust's own extension points: fields, a tab with a table, links, hooks of Flask. Three
things are replaced, as Locust has no such point:

The view of ``POST /swarm`` (run_form_submit.py): Locust's cannot refuse a run, and answers a wrong
number with HTTP 500. ``update_template_args``: Locust sorts the fields of the form as its parser
does, and shows the defaults in place of the last run's values. ``state`` in its responses: its page
stops polling once the runner stops, before the report is made.

All is behind Locust's login.
"""

import logging
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from locust.env import Environment

import flask
import gevent
import msgspec

from locust_llm.server.discovery import Discovery
from locust_llm.settings.run_options import Settings
from locust_llm.settings.run_refusal import RunRefused
from locust_llm.text.numbers import truncate_quoted_text
from locust_llm.web.run_form_fields import (
    LOCUSTFILE,
    build_form_groups,
    list_command_line_flags,
    list_rule_metrics,
    take_settings,
)
from locust_llm.web.run_form_submit import RunFormView, is_reachable_by_others

from .cross_site_guard import guard_origin, parse_allowed_hosts
from .dataset_choices import (
    MAX_UPLOAD_BYTES,
    UPLOAD_S,
    Datasets,
    describe_size_limit,
    sanitise_file_name,
)
from .form_whitelist import Whitelist
from .live_page_data import RunView
from .live_page_tallies import PERCENTILES
from .locust_form import (
    LIMIT_FIELD,
    SCENARIO_FIELD,
    SPAWN_RATE,
    choose_scenario_by_name,
    order_form_fields,
    read_requested_load,
)
from .page_registry import WEB_PAGES, load_page
from .past_runs import FILES, Archive
from .run_goals import GOALS, LOADS
from .upload_and_form_limit import limit_bodies

logger = logging.getLogger("locust_llm")

ASSETS: Final = {
    "uPlot.iife.min.js": "text/javascript",
    "chart_format.js": "text/javascript",
    "chart_scale.js": "text/javascript",
    "chart_labels.js": "text/javascript",
    "chart_shapes.js": "text/javascript",
    "draw_chart.js": "text/javascript",
    "chart_tools.js": "text/javascript",
    "theme.js": "text/javascript",
    "live_values.js": "text/javascript",
    "live_charts.js": "text/javascript",
    "live_side.js": "text/javascript",
    "live.js": "text/javascript",
    "runs.js": "text/javascript",
    "runs.css": "text/css",
    "run_goals.js": "text/javascript",
    "rule_rows.js": "text/javascript",
    "new_run.js": "text/javascript",
    "uPlot.min.css": "text/css",
    "plots.css": "text/css",
    "pages.css": "text/css",
    "live.css": "text/css",
    "new_run.css": "text/css",
}
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
    "img-src 'self' data:; "
    "frame-ancestors 'self'; base-uri 'none'; form-action 'self'"
)
SANDBOX: Final = "sandbox allow-scripts allow-popups allow-downloads"
"""A report may run its script, and reaches nothing of Locust."""
INLINE: Final = (".html", ".md", ".svg")
"""A browser shows these files, and saves all others."""
OPEN_TO_ALL: Final = (
    "The web page is open to the whole network (0.0.0.0) without a login. Use --web-host "
    "127.0.0.1 to restrict it to this machine, or --web-login to require a login"
)
TAB: Final = {"title": "LLM", "key": "llm"}
COLUMNS: Final = (
    ("figure", "Times in ms"),
    *((f"recent{p}", f"last 10 s p{p}") for p in PERCENTILES),
    ("count", "whole run, count"),
    *((f"whole{p}", f"p{p}") for p in PERCENTILES),
)
PAGE_LINK: Final = {
    "href": "./llm",
    "title": "LLM live page: charts and the prefill concurrency limit",
}
"""The link stands on Locust's tab of downloads, the only place of its page with links of an
extension."""
CORNER_LINK: Final = (
    b'<a href="./llm" style="position:fixed;left:1rem;bottom:1rem;z-index:2000;padding:.4rem .8rem;'
    b"border-radius:.4rem;background:#0b5cad;color:#fff;font:600 14px system-ui,sans-serif;"
    b'text-decoration:none">LLM live page</a>'
)
"""The way back from Locust's page, in a corner that its tables leave free."""
LOCUSTS: Final = "locust.index"
"""Locust's own page. Ours replaces it where the address has no query. With a query such as
?tab=stats it is Locust's."""
BLOCK_BYTES: Final = 1 << 16
GATE_FIELDS: Final = ("limit", "ramp_s")
MIN_COMPARED: Final = 2
MAX_COMPARED: Final = 20
FORM_COLUMNS: Final = (("Workload", "Server"), ("Load", "SLO", LOCUSTFILE))
"""The sections of the form in the columns of a wide screen."""


def attach_pages(
    environment: Environment,
    on_asked: Callable[[Settings, Discovery], None],
    *,
    first: bool = False,
) -> RunView:
    """Add our pages to the web UI of this process. ``on_asked`` gets the next run's settings and
    what is known of the server. ``first``: the address of Locust's page leads to ours."""
    options = environment.parsed_options
    report_dir = getattr(options, "report_dir", None)
    archive = (
        Archive(Path(report_dir).parent, Path(report_dir).name)
        if report_dir
        else Archive(Path("reports"))
    )
    view = RunView(environment, archive)
    datasets = Datasets(getattr(options, "input_file", None), _offered(options))
    ui: Any = environment.web_ui
    for rule, endpoint, answer, methods in _routes(view, datasets):
        base = ui.app.blueprints["locust"].url_prefix or ""
        ui.app.add_url_rule(
            f"{base}/llm{rule}",
            endpoint,
            ui.auth_required_if_enabled(_name_view(answer, endpoint)),
            methods=methods,
        )
    _extend(ui, view, datasets, on_asked)
    if options is not None and is_reachable_by_others(options):
        logger.info(OPEN_TO_ALL)
    if first and not ui.userclass_picker_is_active:  # which only Locust's form has
        ui.app.before_request(lambda: _to_ours(view))
    allowed = parse_allowed_hosts(
        getattr(options, "web_allowed_host", None), getattr(options, "web_host", None)
    )
    uploads = f"{ui.app.blueprints['locust'].url_prefix or ''}/llm/datasets"
    app = guard_origin(ui.app.wsgi_app, allowed)
    # also of what is not answered
    ui.app.wsgi_app = limit_bodies(app, lambda path: path == uploads, MAX_UPLOAD_BYTES)
    return view


# -- pages of ours ---------------------------------------------------------------------------------


def _offered(options: Namespace | None) -> Path | None:
    """The folder whose files the form offers: the command line's. Else it is the working directory,
    if nobody else can reach the page."""
    if options is None or not hasattr(options, "web_datasets"):
        return None
    if options.web_datasets:
        return Path(options.web_datasets)
    return None if is_reachable_by_others(options) else Path()


def _routes(
    view: RunView, datasets: Datasets
) -> Iterator[tuple[str, str, Callable[..., flask.Response], list[str]]]:
    """(path below /llm, endpoint, view, methods)."""
    get, post = ["GET"], ["POST"]
    yield "", "llm_page", lambda: _page(_static("live.html")), get
    yield "/static/<name>", "llm_asset", _asset, get
    yield "/new", "llm_new", lambda: _new_run(view, datasets), get
    yield "/past", "llm_past", lambda: _page(_static("runs.html")), get
    yield "/datasets", "llm_datasets", lambda: _upload(view, datasets), post
    yield "/live", "llm_live", lambda: _live(view), get
    yield "/gate", "llm_gate", lambda: _gate(view), post
    yield "/rate", "llm_rate", lambda: _rate(view), post
    yield (
        "/runs",
        "llm_runs",
        lambda: _json({"last": view.archive.last, "runs": view.archive.entries()}),
        get,
    )
    yield (
        "/runs/<run>/<path:path>",
        "llm_file",
        lambda run, path: _file(view.archive, run, path),
        get,
    )
    yield (
        "/last/<path:path>",
        "llm_last",
        lambda path: _file(view.archive, view.archive.last, path),
        get,
    )
    yield "/compare", "llm_compare", lambda: _compare(view), get
    for name in WEB_PAGES:
        yield f"/{name}", f"llm_{name}", partial(_page_of_runs, view, name), get


def _asset(name: str) -> flask.Response:
    return (
        _sent(_static(name), ASSETS[name])
        if name in ASSETS
        else _text("the file does not exist", 404)
    )


def _to_ours(view: RunView) -> Any:
    """A relative address, which also works behind a proxy that removes a path."""
    if flask.request.endpoint != LOCUSTS or flask.request.query_string:
        return None
    return flask.redirect("./llm" if view.runs else "./llm/new")


def _new_run(view: RunView, datasets: Datasets) -> Any:
    """The form, or the live page while a run is on. ``like`` names a past run whose settings it
    gets."""
    if view.control is not None and not view.control.draining:
        return flask.redirect("../llm")
    view.keep_changed_load()
    environment = view.environment
    options, ui = environment.parsed_options, environment.web_ui
    if ui is None or options is None or not hasattr(options, LIMIT_FIELD):
        return _text("the locustfile does not import locust_llm", 404)
    if (scenario := flask.request.args.get(SCENARIO_FIELD)) is not None:
        options = Namespace(**vars(options))
        try:
            choose_scenario_by_name(options, scenario)
        except RunRefused as no:
            return _text(str(no), 404)
    ui.update_template_args()
    extra, host = ui.template_args["extra_options"], ui.template_args["host"]
    if settings := view.archive.settings(flask.request.args.get("like", "")):
        options = take_settings(options, settings)
        host = str(settings.get("host") or host)
    try:
        groups = build_form_groups(options, extra, datasets, host)
    except OSError as error:
        return _text(f"{error.filename}: {error.strerror}", 500)
    template = _static("new_run.html").decode()
    words = {
        "groups": groups,
        "columns": FORM_COLUMNS,
        "sections": {group.section for group in groups},
        "goals": GOALS,
        "loads": LOADS,
        "described": msgspec.to_builtins({"goals": GOALS, "loads": LOADS}),
        "metrics": msgspec.to_builtins(list_rule_metrics()),
        "command_line_flags": list_command_line_flags(),
        "most_bytes": MAX_UPLOAD_BYTES,
    }
    return _page(flask.render_template_string(template, **words).encode())


def _upload(view: RunView, datasets: Datasets) -> flask.Response:
    """The body is the file, ``name`` its name. There is no upload during a run, which it would
    disturb."""

    def blocks() -> Iterator[bytes]:
        while view.control is None and not view.starting:
            if not (block := flask.request.stream.read(BLOCK_BYTES)):
                return
            yield block
        raise RunRefused("a run is active: upload the file after its end")

    name = flask.request.args.get("name", "")
    try:
        with gevent.Timeout(UPLOAD_S, RunRefused("the upload took too long")):
            choice = datasets.keep(name, blocks())
    except RunRefused as no:
        if str(no) == describe_size_limit():
            return _text(str(no), 413)
        return _json({"done": False, "message": str(no)}, 422)
    except OSError as error:
        return _json(
            {"done": False, "message": f"the file cannot be stored: {error.strerror}"}, 507
        )
    return _json({"done": True, "choice": choice, "name": sanitise_file_name(name)})


def _live(view: RunView) -> flask.Response:
    """The status, and the history after ``after`` seconds if ``run`` and ``step`` (seconds between
    points) are unchanged; else the whole history. With ``lines`` also the last requests."""
    wanted = flask.request.args
    status = dict(view.status())
    if (live := view.live) is not None:
        same = wanted.get("run") == str(view.runs) and wanted.get("step") == str(live.step)
        status["points"] = live.since(wanted.get("after", -1.0, float) if same else -1.0)
        status["whole"] = not same
        if "lines" in wanted:
            status["lines"] = live.lines()
    return _json(status)


def _gate(view: RunView) -> flask.Response:
    """Set the limit to ``limit`` slots (empty: no gate), over ``ramp_s`` seconds (empty: at
    once)."""
    limit, ramp_s = (flask.request.form.get(name, "").strip() for name in GATE_FIELDS)
    try:
        if others := {*flask.request.form, *flask.request.args, *flask.request.files} - {
            *GATE_FIELDS
        }:
            raise ValueError(
                "the request must have the fields limit and ramp_s only, not "
                f"{truncate_quoted_text(repr(min(map(str, others))))}"
            )
        done = view.change_limit(
            _number(int, "the limit must be a whole number", limit),
            _number(float, "the ramp must be a number of seconds", ramp_s),
        )
    except ValueError as no:
        return _json({"done": False, "message": str(no)}, 422)
    return _json({"done": True, "message": done})


def _rate(view: RunView) -> flask.Response:
    """Set the request rate to ``rate`` requests per second."""
    try:
        per_s = _number(
            float,
            "the rate must be a number of requests per second",
            flask.request.form.get("rate", "").strip(),
        )
        if per_s is None or per_s <= 0:
            raise ValueError("the rate must be above 0 requests per second")
        done = view.change_rate(per_s)
    except ValueError as no:
        return _json({"done": False, "message": str(no)}, 422)
    return _json({"done": True, "message": done})


def _number(kind: type, wanted: str, text: str) -> Any:
    """The number of a text. None: it is empty. Raises ValueError of one sentence."""
    try:
        value = kind(text) if text else None
    except ValueError:
        value = float("nan")
    if value is not None and not abs(value) < float("inf"):
        raise ValueError(f"{wanted}, got {text!r}")
    return value


def _page_of_runs(view: RunView, name: str) -> flask.Response:
    """A page of all past runs. A thread makes it, and not during a run, which it would disturb."""
    if (reports := view.archive.reports) is None or not reports.is_dir():
        return _text(
            f"this page has no folder of runs because of --report-dir: use locust-llm {name} DIR",
            404,
        )
    if view.control is not None or view.starting:
        return _text(f"a run is active: the {name} is available after its end", 409)
    make_page = load_page(name)  # here: locks of an import belong to greenlets, not to that thread
    made: str = gevent.get_hub().threadpool.apply(make_page, (reports,))
    answer = _sent(made.encode(), "text/html")
    answer.headers["Content-Security-Policy"] = SANDBOX
    return answer


def _compare(view: RunView) -> flask.Response:
    """The comparison of the runs ``run``, of which the first one is the base. A process of its own
    makes it."""
    folders = [view.archive.folder(name) for name in flask.request.args.getlist("run")]
    known = [folder for folder in folders if folder is not None]
    if len(known) < MIN_COMPARED or len(known) < len(folders) or len(known) > MAX_COMPARED:
        return _text(f"a comparison needs {MIN_COMPARED} to {MAX_COMPARED} runs of the list", 404)
    if view.control is not None or view.starting:
        return _text("a run is active: compare after its end", 409)
    with TemporaryDirectory() as scratch:
        page = Path(scratch) / "compare.html"
        words = ["compare", *map(str, known), "--html", str(page)]
        done = subprocess.run(
            [sys.executable, "-m", "locust_llm", *words], capture_output=True, text=True
        )
        if not page.exists():
            return _text(done.stderr.strip() or "the runs cannot be compared", 422)
        answer = _sent(page.read_bytes(), "text/html")
    answer.headers["Content-Security-Policy"] = SANDBOX
    return answer


def _file(archive: Archive, run: str, path: str) -> flask.Response:
    content = archive.file(run, path)
    if content is None:
        return _text("the run has no such file", 404)
    kind = "text/plain" if content.suffix == ".md" else None
    name = f"{run}-{path.replace('/', '-')}"
    answer = flask.send_file(
        content.resolve(),
        kind,
        as_attachment=content.suffix not in INLINE,
        download_name=name,
        max_age=0,
    )
    answer.headers["X-Content-Type-Options"] = "nosniff"
    answer.headers["Content-Security-Policy"] = SANDBOX
    return answer


# -- pages of Locust -------------------------------------------------------------------------------


def _extend(
    ui: Any, view: RunView, datasets: Datasets, on_asked: Callable[[Settings, Discovery], None]
) -> None:
    options = view.environment.parsed_options or Namespace()
    views = ui.app.view_functions
    table = {
        "key": TAB["key"],
        "structure": [{"key": key, "title": title} for key, title in COLUMNS],
    }
    links = [
        PAGE_LINK,
        *({"href": f"./llm/last/{file}", "title": f"LLM {what}"} for file, what in FILES.items()),
    ]
    for name, more in (
        ("extended_tabs", [TAB]),
        ("extended_tables", [table]),
        ("extended_csv_files", links),
    ):
        ui.template_args.setdefault(name, []).extend(more)
    # the fields of the form have an order
    ui.app.jinja_env.policies["json.dumps_kwargs"] = {"sort_keys": False}

    update = ui.update_template_args

    def llm_stats(answer: flask.Response) -> flask.Response:
        # else Locust's login
        if flask.request.endpoint == "locust.request_stats" and answer.is_json:
            stats = answer.get_json()
            others = [
                table for table in stats.get("extended_stats", []) if table["key"] != TAB["key"]
            ]
            stats["extended_stats"] = [*others, {"key": TAB["key"], "data": list(view.rows())}]
            stats["state"] = _state(view)
            answer = flask.jsonify(stats)  # a new one: Locust keeps its own for two seconds
        return answer

    def link_back(answer: flask.Response) -> flask.Response:
        # not on the page of Locust's login, which has another endpoint
        if flask.request.endpoint == LOCUSTS and answer.mimetype == "text/html":
            page = answer.get_data()
            answer.set_data(page.replace(b"</body>", CORNER_LINK + b"</body>", 1))
        return answer

    def llm_update() -> None:
        update()
        args = ui.template_args
        args["state"] = _state(view)
        args["spawn_rate"] = args["spawn_rate"] or SPAWN_RATE
        if hasattr(options, LIMIT_FIELD):
            args["extra_options"] = order_form_fields(args["extra_options"], options)
            users, spawn_rate, run_time = read_requested_load(options)
            args |= {
                "num_users": users,
                "spawn_rate": spawn_rate or SPAWN_RATE,
                "run_time": run_time,
            }

    ui.app.after_request(llm_stats)
    ui.app.after_request(link_back)
    ui.update_template_args = llm_update
    if hasattr(options, LIMIT_FIELD):
        whitelist = Whitelist(
            view.environment, options, picks_classes=ui.userclass_picker_is_active
        )
        swarm = RunFormView(view, options, datasets, whitelist, views["locust.swarm"], on_asked)
        base = ui.app.blueprints["locust"].url_prefix or ""
        ui.app.add_url_rule(
            f"{base}/llm/command",
            "llm_command",
            ui.auth_required_if_enabled(_name_view(swarm.show_command, "llm_command")),
            methods=["POST"],
        )
        views["locust.swarm"] = ui.auth_required_if_enabled(_name_view(swarm, "llm_swarm"))
        change = partial(_change_user, whitelist, swarm.keep_key, views["locust.update_user"])
        views["locust.update_user"] = ui.auth_required_if_enabled(_name_view(change, "llm_user"))


def _change_user(
    whitelist: Whitelist, keep_key: Callable[[str], None], ask_locust: Callable[[], Any]
) -> Any:
    """Check a change of a user class, as Locust sets any attribute to anything."""
    try:
        whitelist.check_user(flask.request.get_data(), keep_key)
    except (RunRefused, ValueError, OSError) as no:
        return _text(str(no), 422)
    return ask_locust()


def _state(view: RunView) -> str:
    """The state of Locust's runner, but "running" until the report is made.

    Locust's page polls only while a run is spawning or running. Otherwise it would keep old values,
    and show no button for the next run.
    """
    state = str(view.environment.runner.state)  # type: ignore[union-attr]
    if view.control is not None and state in ("cleanup", "stopping", "stopped"):
        return "running"
    return "stopped" if state in ("cleanup", "stopping") else state


# -- answers ---------------------------------------------------------------------------------------


def _name_view(answer: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Name a view as Locust's login requires."""

    def view(**words: str) -> Any:
        return answer(**words)

    view.__name__ = name
    return view


def _static(name: str) -> bytes:
    return files("locust_llm").joinpath("static", name).read_bytes()


def _page(content: bytes) -> flask.Response:
    answer = _sent(content, "text/html")
    answer.headers["Content-Security-Policy"] = POLICY
    return answer


def _sent(content: bytes, kind: str) -> flask.Response:
    answer = flask.Response(content, mimetype=kind)
    answer.headers["X-Content-Type-Options"] = "nosniff"
    answer.headers["Cache-Control"] = "no-cache"
    return answer


def _json(content: Any, status: int = 200) -> flask.Response:
    answer = flask.Response(msgspec.json.encode(content), status, mimetype="application/json")
    answer.headers["Cache-Control"] = "no-store"
    return answer


def _text(text: str, status: int) -> flask.Response:
    return flask.Response(text, status, mimetype="text/plain")
