"""inference-perf: its metrics and its requests."""
