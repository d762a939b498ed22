"""Server: what the server's own metrics add: histograms, speculative decoding."""
