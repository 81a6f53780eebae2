"""Columns that training learns from: right answers and demonstrations, as tokens."""
