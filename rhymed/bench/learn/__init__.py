"""`rhymed bench learn`: the same task trained by every algorithm, as a table and a picture."""
