"""Tables inside `[trainer]`, a file each."""
