"""What lets a run in: headers, the API key and the command that prints it, certificates, the proxy that it passes."""
