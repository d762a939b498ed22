"""A simulated vLLM server: continuous batching with a known clock, for tests and for people without
a GPU."""
