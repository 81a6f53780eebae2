"""A run for people: its newest snapshot on a terminal and as a web page, and that page as one file."""
