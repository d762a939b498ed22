"""AIPerf: its metrics and its requests."""
