"""The data plane: every token, log-prob, reward and length ever made, in LMDB. It is also the journal of the run."""
