"""Where the processes of a run are placed: the plan that every engine starts from, and the engines."""
