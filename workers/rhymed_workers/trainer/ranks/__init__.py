"""What the ranks of a sharded trainer do together: who computes what, sums over all, and the gather of tensors."""
