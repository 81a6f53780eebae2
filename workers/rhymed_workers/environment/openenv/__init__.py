"""OpenEnv's protocol: sessions over WebSockets, and what schemas, observations and tools mean for a policy."""
