"""Core: the data that every room shares: the record of a request, the settings of a run, its phases, its folder on disk.

Read first: record.py (what is known of one request), then settings.py (what was asked of a run, and our options) and run.py
(what is known of it).
May use: slo. Nothing here touches the network, Locust or gevent.
"""
