"""Checkpoints: copies of what a resume needs, and the thread that writes them while training continues."""
