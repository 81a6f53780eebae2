"""Inference engines: vLLM, and an engine that replays traces."""
