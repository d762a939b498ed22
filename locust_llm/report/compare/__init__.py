"""Compare: two runs: the conditions in which they differ, and the differences of their metrics."""
