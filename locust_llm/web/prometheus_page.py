"""Prometheus page: what Prometheus reads: a page of the web UI, and with --metrics-port one on its
own port, headless too."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from locust.env import Environment

from flask import Response
from gevent.pywsgi import WSGIServer

from locust_llm.controller.prometheus_export import (
    CONTENT_TYPE,
    build_gauges,
    build_part_counters,
    build_rule_gauges,
    build_total_counters,
    format_exposition,
)
from locust_llm.controller.run_controller import Controller
from locust_llm.records.phase_plan import OVER, PROFILING, stage_of_phase
from locust_llm.settings.run_refusal import refuse_run
from locust_llm.settings.server_address import explain_unopened_port, parse_metrics_port

from .upload_and_form_limit import limit_bodies

PATH: Final = "/llm/metrics"
MAX_CONNECTIONS: Final = 16
"""The most connections of the port at a time."""


def serve_metrics(environment: Environment, shown: Callable[[], Controller | None]) -> None:
    """``shown`` gives the present run, else the last one. Before the first the page is empty.
    Headless there is no such page."""
    web_ui = environment.web_ui
    if web_ui is None:
        return

    def llm_metrics() -> Response:
        control = shown()
        return Response(
            "" if control is None else format_live_metrics(control), content_type=CONTENT_TYPE
        )

    base = getattr(environment.parsed_options, "web_base_path", None) or ""
    assert web_ui.app is not None
    web_ui.app.add_url_rule(
        base.rstrip("/") + PATH, view_func=web_ui.auth_required_if_enabled(llm_metrics)
    )


def format_live_metrics(control: Controller) -> str:
    """The metrics of a run now."""
    runner = control.environment.runner
    s, stages, phase = control.settings, control.stages, control.plan.phase
    shown_phase = PROFILING if stage_of_phase(phase) else phase
    if control.draining:
        shown_phase = OVER
    info = {
        "run": control.folder.name,
        "model": control.survey.models or s.model_mix or s.model or "",
        "server": s.host,
        "loop": "open" if s.open_loop else "closed",
        "phase": shown_phase,
        "stage": ""
        if stages is None or not stages.number
        else f"{stages.asked.axis}={stages.value:g}",
    }
    users = 0 if runner is None else runner.user_count
    over = control.draining and not users
    now = build_gauges(
        control.run_progress,
        users=users,
        limit=control.limit,
        info=info,
        over=over,
        workers=len(control.processes()),
    )
    rules = () if over else build_rule_gauges(s.rules.readable, control.abort.progress())
    return format_exposition(
        *now,
        *rules,
        *build_total_counters(control.totals),
        *build_part_counters(control.run_progress.parts),
    )


def serve_metrics_on(address: str, shown: Callable[[], Controller | None]) -> WSGIServer:
    """Serve the page at ``ADDR:PORT``, or at ``PORT`` on this machine alone, until the process
    ends. Raises Refused."""

    def answer(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
        if environ.get("PATH_INFO") not in (PATH, "/metrics"):
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [f"metrics are at {PATH}\n".encode()]
        control = shown()
        start_response("200 OK", [("Content-Type", CONTENT_TYPE)])
        return [b"" if control is None else format_live_metrics(control).encode()]

    try:
        limited = limit_bodies(answer, lambda path: False, 0)
        server = WSGIServer(parse_metrics_port(address), limited, log=None, spawn=MAX_CONNECTIONS)
        server.start()
    except ValueError as error:
        refuse_run(str(error))
    except OSError as error:
        refuse_run(explain_unopened_port(address, error))
    return server
