"""In the cage: the user's tools and environments, loaded and run."""
