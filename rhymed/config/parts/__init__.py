"""Tables inside `[trainer]`, `[environment]`, and `[placement]` with its own, a file each."""
