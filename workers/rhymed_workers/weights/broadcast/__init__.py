"""Weights by broadcast, from the trainer's memory to all engines at once, while nobody joins or leaves."""
