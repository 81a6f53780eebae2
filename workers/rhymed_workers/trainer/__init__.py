"""The trainer: its service, its learners, checkpoints and published weights."""
