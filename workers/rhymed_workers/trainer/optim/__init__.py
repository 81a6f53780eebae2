"""The optimizer: its learning rate over the run, the libraries that implement it, and its state at rest."""
