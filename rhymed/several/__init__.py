"""Several runs: the list of a folder, their states, how they differ, and which of two is better. Only reads."""
