"""Rewards: the worker with its pool of scoring processes and its judges, and what runs in such a process."""
