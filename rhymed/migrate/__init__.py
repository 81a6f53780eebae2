"""Configurations of other trainers, read and written as ours. Pure but for `read`."""
