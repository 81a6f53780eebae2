"""The index of one prompt's history: its arrays, their builder and their cache."""
