"""Commands that prepare a folder or a shell."""
