"""`python -m benchmarks sampler`: keyed sampling on this machine, on the CPU and on a GPU."""
