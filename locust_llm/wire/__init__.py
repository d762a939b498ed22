"""Wire: messages between the controller and the workers, their delivery, the handshake, the clocks.

Begin with worker_messages.py, which has every message. Then read reliable_delivery.py (messages
that must arrive) and handshake.py.
"""
