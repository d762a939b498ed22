"""Worker: one process that sends: permits, users, sessions, requests, records on their way.

Begin with worker_context.py (what the users of a process share), then read send_permits.py (what it
may send), send_request.py (one request) and records_to_master.py (records to the master). It learns
of the controller by messages only.
"""
