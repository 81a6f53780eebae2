"""Inference engines: vLLM, and an engine without a model."""
