"""OpenAI's chat completions, and vLLM's call with token ids, as data: what is asked, and what is answered. Pure."""
