"""`rhymed run`: starts the processes, shows the screen, and handles the end."""
