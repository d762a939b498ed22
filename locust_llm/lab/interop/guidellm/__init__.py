"""guidellm: its metrics and its requests."""
