"""A/B: two variants compared in pairs of blocks."""
