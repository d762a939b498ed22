"""The commands of a twin: command.py is their door."""
