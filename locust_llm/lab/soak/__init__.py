"""Soak: what grows while a server works for hours: memory, open files, latencies, the queue, errors.

Read first: soak_command.py, which runs ``run --soak`` as a child and judges all parts together by
trends/soak_judgement.py.
"""
