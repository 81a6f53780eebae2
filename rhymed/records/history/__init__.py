"""`rhymed history`: reads, compares, checks and converts the stored history of runs."""
