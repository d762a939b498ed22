"""The model of time: queues, steps and what a step costs, on any clock; no socket and no text."""
