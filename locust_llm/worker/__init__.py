"""Worker: one process that sends: permits, users, sessions, requests, records on their way.

Read first: worker.py (what the users of a process share), permits.py (what it may send),
send_request.py (one request), outbox.py (records to the master). It learns of the controller by
messages only.
"""
