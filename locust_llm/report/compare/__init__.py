"""Compare: two runs: in which conditions they differ, and how far their metrics do."""
