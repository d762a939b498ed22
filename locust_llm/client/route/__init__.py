"""Route: which way a connection takes: through which proxy (proxy.py), from which address of this machine (source.py), with
which TLS (tls.py).

May use: core, client/native.
"""
