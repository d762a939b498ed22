"""Web: this library in Locust's web UI: the form, the live page with the gate, past reports, the
Prometheus page.

Begin with routes.py (every address and its view), then read live_page_data.py (the state that
pages show). The form has three files: run_form_fields.py (its fields), locust_form.py (what comes
back), run_form_submit.py (what follows). What a browser loads is in locust_llm/static.
"""
