"""Commands that watch or steer a living run."""
