"""Training that begins with a step's first complete groups, while engines still generate the others.

The weights do not change before all groups are in, so nothing becomes stale: only the gradient is computed earlier.
"""
