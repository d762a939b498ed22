"""Lab: what one does with results beyond a load test: twin, probe, canary, history, Pareto curves,
other tools' results.

The load tester imports nothing of it: commands, report kinds and web pages of the lab are named in
registries.
"""
