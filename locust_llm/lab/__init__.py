"""Lab: commands that go beyond a load test: twin, probe, canary, history, Pareto curves, and
results of other tools.

The load tester imports nothing from this folder. Its registries name the lab's commands, report
kinds and web pages.
"""
