"""Protocols: how requests are written and responses read, one small file for each API of a server.

Begin with protocol.py, which has what each protocol provides. request_body.py makes the JSON
of a request, answer_parser.py has what a response becomes. Then read any of the others.
"""
