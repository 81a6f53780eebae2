"""What a worker uses of its machine: processors, memory and GPUs, for its heartbeats."""
