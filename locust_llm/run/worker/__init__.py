"""Worker: one process that sends: its permits, its share of the gate, its users' common state, records on their way.

Read first: sender.py (what the users of a process share), permits.py (what it may send), outbox.py (records to the master),
sentinel.py (the certificate).
May use: run, client, protocols, core, load, truth. Never control: it learns of it by messages only.
"""
