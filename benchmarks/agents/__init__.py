"""`python -m benchmarks agents`: samples in turns, from the slots of engines to the tools that answer."""
