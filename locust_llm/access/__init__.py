"""Access: what lets a run reach the server: headers, the API key and its command, certificates,
proxies, source addresses.

Begin with headers.py, which makes the headers of every request. key_command.py renews a key during
a run.
"""
