"""The index of one prompt's history: flat arrays, their builder and their cache."""
