"""In the jail: the user's tools and environments, loaded and run."""
