"""Sessions: their latency, depth and width, and one session turn by turn."""
