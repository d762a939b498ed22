"""Reader: the thread that reads all streams of a process and stamps what arrives, in C or in
Python.

Begin with open_streams.py, which the event loop uses. python_reader.py has the same methods as
_reader.c. reader_choice.py chooses between them.
"""
