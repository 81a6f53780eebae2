"""Where programs that a model wrote are run."""
