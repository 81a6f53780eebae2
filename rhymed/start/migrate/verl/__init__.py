"""verl: the table of its settings."""
