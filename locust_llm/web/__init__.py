"""Web: this library in Locust's web UI: the form, the live page with the gate, past reports, the Prometheus page.

Read first: routes.py (every address and what answers), then view.py (the state that pages show) and live.js in static/; for
the form new_run.py (its fields), form.py (what comes back) and swarm.py (what follows).
May use: run, run/control, report/plots/lines.py, core, load, slo.
"""
