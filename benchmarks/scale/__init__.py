"""Shared by the benchmarks of the control plane: processes, emulated workers, and the pauses of an event loop."""
