"""What the dashboard shows, read from the run's folder and the store."""
