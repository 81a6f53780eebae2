"""What every process writes down while it works, and how it is read: a file a process, a JSON object a line."""
