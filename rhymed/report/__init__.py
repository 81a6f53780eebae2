"""What is left of a run for people: a summary on the terminal, and a report as one file with its pictures."""
