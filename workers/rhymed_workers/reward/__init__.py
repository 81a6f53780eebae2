"""The reward worker: a pool of scoring processes, as their parent sees them."""
