"""GPUs: which there are, or are assumed, and which process of a run has which of them."""
