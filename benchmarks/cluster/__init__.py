"""`python -m benchmarks cluster`: what placement by Ray costs, and how long a run takes to recover from lost
machines."""
