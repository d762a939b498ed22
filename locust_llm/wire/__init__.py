"""Wire: messages between the controller and the workers, their delivery, the handshake, the clocks.

Begin with messages.py, which has every message. Then read delivery.py (messages that must arrive)
and handshake.py.
"""
