"""Sweep: its stages, its knees, what follows for an operator."""
