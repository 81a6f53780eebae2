"""Where the processes of a run are placed: the plan, what starts them (this machine, Ray, Slurm), and their GPUs."""
