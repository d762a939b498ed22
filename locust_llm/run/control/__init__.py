"""Control: the master, or the only process: phases and stages, the gate's limit, work dealt out, records, the end.

Read first: control.py, then phase_runner.py (phases of a run), gate_limit.py (the limit over all processes), run_store.py.
May use: run, run/worker, client, core, load, slo.
"""
