"""`python -m benchmarks whole`: what scheduling, drafts, both, overlap and staleness 1 gain over plain training."""
