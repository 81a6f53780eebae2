"""Reads a whole store for people and reports."""
