"""Compares the samples of two runs, and audits what was trained."""
