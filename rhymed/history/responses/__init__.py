"""What a response is made of: its text by drafts, and its turns."""
