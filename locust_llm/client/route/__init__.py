"""Route: which way a connection takes: through which proxy (proxy.py), from which address of this machine (source.py), and its
TLS layer (tls.py).

May use: core, client/native.
"""
