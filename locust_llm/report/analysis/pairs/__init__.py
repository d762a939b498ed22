"""Pairs: two arms compared block by block."""
