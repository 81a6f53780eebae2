"""What every process of a run is: an actor with retries, watchdogs, log file and time accounting."""
