"""The control plane: which sample is where, who is alive, what runs next. Small messages only."""
