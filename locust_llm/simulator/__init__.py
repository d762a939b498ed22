"""Simulator: imitates a vLLM server with continuous batching and known times, for tests and for
people without a GPU."""
