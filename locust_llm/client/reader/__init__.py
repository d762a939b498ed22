"""Reader: the thread that reads all streams of a process and stamps what arrives, in C or in
Python.

Read first: open_streams.py (what the event loop sees of it), then python_reader.py, which has the
same methods as _reader.c. process_reader.py chooses between them.
"""
