"""Records: the data of a run: the record of a request, the facts of the run, their files, the
server's metrics.

Begin with record.py (one request), then read run.py (one run and its folder). Nothing here touches
the network, Locust or gevent.
"""
