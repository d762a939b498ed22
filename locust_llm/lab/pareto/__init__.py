"""Pareto curves: tokens a second per GPU against tokens a second per user."""
