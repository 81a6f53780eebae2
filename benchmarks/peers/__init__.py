"""Training steps of rhymed and of TRL's GRPOTrainer, in turns, on the same model, rows, reward and sizes."""
