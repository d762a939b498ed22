"""Access: what lets a run reach the server: headers, the API key and its command, certificates,
proxies, source addresses.

Read first: headers.py (what every request carries), then key_command.py (how a key is renewed
during a run).
"""
