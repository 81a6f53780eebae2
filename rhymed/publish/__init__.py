"""`rhymed checkpoint push`: a checkpoint as a repository of a hub, with a model card made of the run's records."""
