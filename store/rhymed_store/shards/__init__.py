"""Several stores of one run, by prompt: their client, their folders, and all of them read as one."""
