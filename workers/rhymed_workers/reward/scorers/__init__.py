"""Scorers: math, code, exact, regex and the user's own functions."""
