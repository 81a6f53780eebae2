"""What a run needs of each GPU, and whether the GPUs that there are, or are assumed, have it."""
