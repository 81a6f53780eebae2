"""`rhymed launch`: a run's plan as files for Slurm and Kubernetes. Only `folder` and `submit` are not pure."""
