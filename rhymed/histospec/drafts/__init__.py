"""Which tokens are drafted and how many of them are verified: votes, calibration, budget."""
