"""What differs between the releases of vLLM, behind the calls of the newest one."""
