"""Position-keyed sampling: on a CPU, and by Triton kernels on a GPU."""
