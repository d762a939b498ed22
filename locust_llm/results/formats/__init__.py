"""Formats: what each tool writes of a run. A file for each: ``is_one`` knows its documents, ``read`` reads one."""
