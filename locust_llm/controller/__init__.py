"""Controller: the master, or the only process of a run: phases, stages, work for each worker,
records, the end.

Read first: controller.py, then phases.py (the phases of a run), gate_limit.py (the limit over all
processes), run_store.py.
"""
