"""Reproduce: replays the requests around a wrong answer and finds the few that the fault needs. Read
``verify_reproduce.py`` first."""
