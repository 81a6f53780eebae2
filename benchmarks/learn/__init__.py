"""`python -m benchmarks learn`: the same task trained by every algorithm, as a table and a picture."""
