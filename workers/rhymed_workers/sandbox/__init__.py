"""Where programs written by a model run."""
