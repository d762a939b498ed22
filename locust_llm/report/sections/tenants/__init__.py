"""Tenants: the service that each received, and how evenly."""
