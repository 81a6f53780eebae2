"""A Triton "backend" for processors, for tests: with it vLLM takes Triton on a CPU, and so its model runner V2.

A folder on `PYTHONPATH`, beside Triton itself, is all that it takes: Triton finds this package by the entry points in
the metadata next to it, and so does vLLM its shims (`plugin`). Kernels run in Triton's interpreter, which
`TRITON_INTERPRET=1` chooses before a process imports Triton; without it Triton has no driver, and vLLM does not
start. What that shows is where data goes: positions, slots, order, lengths. It does not show races of streams, pinned
memory, graphs, or whether a kernel compiles.
"""
