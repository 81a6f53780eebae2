"""Which tokens are drafted, and how many of them a step verifies: votes, calibration, budget."""
