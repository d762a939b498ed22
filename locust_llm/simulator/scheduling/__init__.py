"""Scheduling: models queues, steps and their time on any clock, without sockets and texts."""
