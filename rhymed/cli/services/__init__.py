"""Commands that run one process of a run."""
