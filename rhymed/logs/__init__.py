"""Reads the logs of a run: one file per process, one JSON object per line."""
