"""Core: the data that every room shares: the record of a request, the settings of a run, its phases, its folder on disk.

Read first: record.py (what is known of one request), then settings.py (its fields declare our options) and run.py (what is known of a run).
May use: slo. Nothing here touches the network, Locust or gevent.
"""
