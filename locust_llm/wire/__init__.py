"""Wire: messages between the controller and the workers, their delivery, the handshake, the clocks.

Read first: messages.py (every message), then delivery.py (those that must come) and handshake.py.
"""
