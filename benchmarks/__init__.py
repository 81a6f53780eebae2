"""Measurements of docs/experiments.md as commands: `python -m benchmarks NAME`, in a checkout."""
