"""Scores responses by a model on a server: asked from the reward worker's event loop, many samples at a time."""
