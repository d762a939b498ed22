"""Records: the data of a run: the record of a request, the facts of the run, their files, the
server's metrics.

Read first: record.py (what is known of one request), then run.py (what is known of a run) and
storage.py (its folder). Nothing here touches the network, Locust or gevent.
"""
