"""Web: this library in Locust's web UI: the form, the live page with the gate, past reports, the Prometheus page.

Read first: routes.py (every address and what answers), then view.py (the state that pages show) and live.js in static/.
May use: run, run/control, report/plots/lines.py, core, slo.
"""
