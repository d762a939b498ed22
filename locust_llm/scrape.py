"""The page that Prometheus scrapes: /llm/metrics, beside the pages of Locust's web UI and behind the same login."""

from collections.abc import Callable
from typing import Final

from locust.env import Environment

from flask import Response

from .control import Control
from .exposition import CONTENT_TYPE, standing
from .plan import OVER, PROFILING, stage_of

PATH: Final = "/llm/metrics"


def serve_metrics(environment: Environment, shown: Callable[[], Control | None]) -> None:
    """``shown``: the run that is on, else the last one. Before the first the page is empty. Headless there is no page."""
    web_ui = environment.web_ui
    if web_ui is None:
        return

    def llm_metrics() -> Response:
        control = shown()
        return Response("" if control is None else text(control), content_type=CONTENT_TYPE)

    base = getattr(environment.parsed_options, "web_base_path", None) or ""
    assert web_ui.app is not None
    web_ui.app.add_url_rule(base.rstrip("/") + PATH, view_func=web_ui.auth_required_if_enabled(llm_metrics))


def text(control: Control) -> str:
    """Of a run, as it stands."""
    runner = control.environment.runner
    s, stepper, phase = control.settings, control.stepper, control.plan.phase
    info = {
        "run": control.folder.name,
        "model": control.survey.model or s.model or "",
        "server": s.host,
        "loop": "open" if s.open_loop else "closed",
        "phase": OVER if control.draining else PROFILING if stage_of(phase) else phase,
        "stage": "" if stepper is None or not stepper.number else f"{stepper.asked.axis}={stepper.value:g}",
    }
    users = 0 if runner is None else runner.user_count
    return "".join((*standing(control.pulse, users=users, limit=control.limit, info=info), *control.totals.families()))
