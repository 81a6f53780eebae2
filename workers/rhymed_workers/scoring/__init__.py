"""The scoring process and the jail around it."""
