"""`python -m benchmarks gpu`: everything that has to be measured on a GPU, as one command with parts."""
