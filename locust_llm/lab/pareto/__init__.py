"""Pareto: compares tokens per second per GPU with tokens per second per user."""
