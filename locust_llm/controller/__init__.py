"""Controller: the master, or the only process of a run: phases, stages, work for each worker,
records, the end.

Begin with run_controller.py, then read phases.py (the phases of a run), gate_limit.py (the limit
over all processes) and run_store.py.
"""
