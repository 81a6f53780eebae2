"""A run on a terminal, for `rhymed top`, `rhymed run` and `rhymed queues`: pure views of a snapshot."""
