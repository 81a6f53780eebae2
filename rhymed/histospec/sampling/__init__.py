"""Position-keyed sampling: on a CPU, by Triton kernels on a GPU, on any torch device."""
