"""A model's size by its files, and the memory that a pass through it takes."""
