"""Delivery: the schedule of an open loop, what of it was sent and completed, and why not all."""
