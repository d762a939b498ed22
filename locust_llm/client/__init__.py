"""Client: one request, from the connection to its record: send, stream, stamps, record.

Begin with request_exchange.py, which follows one request. reader/_reader.c shows how a chunk gets
its stamp, chat_answer.py what chat() returns. This is the hot path: it stamps first and decodes
later.
"""
