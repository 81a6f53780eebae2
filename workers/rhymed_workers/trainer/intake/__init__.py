"""Samples on their way to the learner: read from the store, a whole step at once or group by group."""
