"""Outages: when nothing answered."""
