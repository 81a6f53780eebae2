"""`python -m benchmarks hosts`: weights from one trainer to several hosts, each a network namespace of this
machine."""
