"""Which head has a run: a file that its owner renews, for places where no lock works."""
