"""A run's folder: its layout, the formats of its files, and the client that asks a living run."""
