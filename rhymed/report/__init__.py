"""A run's results for people: the summary on the terminal, and the report as one HTML file with its pictures."""
