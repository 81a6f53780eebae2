"""Where people begin: the commands, the Python interface, and what starts and supervises the processes of a run."""
