"""Ranks that train one model together: rank 0 in the trainer's service, the others follow it."""
