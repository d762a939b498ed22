"""Energy: what the GPUs of the server drew, and for each output token."""
