"""Access: what lets a run reach the server: headers, the API key and its command, the files of
certificates, notes on proxies, source addresses.

Begin with headers_and_api_key.py, which makes the headers of every request. api_key_process.py
renews a key during a run. operator_command.py runs a program of the operator without keys. client/proxy_choice.py and client/tls_settings.py choose what connections
use.
"""
