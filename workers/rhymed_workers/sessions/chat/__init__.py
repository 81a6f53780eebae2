"""Requests of programs and their answers as data: OpenAI's chat completions. Pure."""
