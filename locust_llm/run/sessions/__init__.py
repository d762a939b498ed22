"""Sessions: the turns of one user, one after the other or side by side, and how each becomes a request.

Read branch.py first: one request after the other over a connection of its own. tree.py sends the turns of a session when
those that they wait for have ended; script.py is the same for code of a locustfile. May use run and all below it.
"""
