"""Gateway bench: what a proxy, router or gateway adds to answers, changes in them and hides.

Read first: upstream_script.py (what a request asks of the upstream), then timed_upstream.py (the
server behind the gateway).
"""
