"""Samples in turns: which environment worker answers which of them."""
