"""What a run will do and need, found out before it starts. Changes nothing and leaves nothing behind."""
