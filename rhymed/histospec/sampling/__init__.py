"""Position-keyed sampling, on a CPU and on any torch device."""
