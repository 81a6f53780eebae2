"""The model as the loss sees it: packed samples in, log-probs and gradients out."""
