"""Soak: what grows while a server works for hours: memory, open files, latencies, the queue, errors.

Read first: soak_command.py, which runs the load as a child and takes readings beside it, then
soak_judgement.py, which judges them by trends/steady_growth.py.
"""
