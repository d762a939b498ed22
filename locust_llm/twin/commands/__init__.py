"""Commands of a twin, a file each; command.py is where they begin."""
