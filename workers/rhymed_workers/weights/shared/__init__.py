"""Weights that a trainer offers in the memory of its device, next to the file of the same version."""
