"""Advice on a run's health: what is wrong in its newest steps, and what to change."""
