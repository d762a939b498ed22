"""Tests of the twin of a server."""
