"""TRL: the table of its settings, and how a script with GRPOConfig and GRPOTrainer is read."""
