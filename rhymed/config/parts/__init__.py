"""Tables inside `[trainer]`, and `[placement]` with its own, a file each."""
