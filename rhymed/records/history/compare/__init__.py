"""Compares runs, samples and weights, and audits what was trained."""
