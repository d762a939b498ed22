"""Published rules: whether a run is valid by the rules of a benchmark."""
