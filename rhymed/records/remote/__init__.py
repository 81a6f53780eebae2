"""A run's copy on storage that many hosts can use: checkpoints, backups of the store, its lease, and the way back."""
