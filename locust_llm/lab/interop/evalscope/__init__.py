"""evalscope: its metrics and its requests."""
