"""An engine's share of GPUs: arguments of vLLM that follow from settings, whether it fits, its memory in sleep."""
