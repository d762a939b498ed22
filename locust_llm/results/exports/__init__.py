"""Exports: a run in the formats of other tools, a file for each. What a format cannot say is left out, never made up."""
