"""Pure functions over flat tokens, of which algorithms are made."""
