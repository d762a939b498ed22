"""vllm bench: its metrics, its requests, and a run written in its format."""
