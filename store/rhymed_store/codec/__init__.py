"""Samples at rest as bytes. Pure: no database, no clock."""
