"""Interference: what prefills do to the requests beside them."""
