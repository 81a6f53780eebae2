"""Ray as a placer of a run's processes: it chooses machines, and no data of the run goes through it."""
