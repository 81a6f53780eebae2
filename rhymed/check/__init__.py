"""What a run will do and need, checked before it starts. Changes nothing and leaves nothing behind."""
