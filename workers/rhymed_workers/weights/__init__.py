"""Weights on their way from the trainer's file to every host: slices, relays, one copy a host."""
