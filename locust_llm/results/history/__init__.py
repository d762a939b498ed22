"""History: the folders of runs as a memory: their index, the changes that are real, and how both are shown."""
