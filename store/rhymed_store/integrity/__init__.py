"""Verifies and repairs a database."""
