"""Route: which way a connection takes: through which proxy (proxy.py), from which address of this machine (source.py).

May use: core.
"""
