"""`rhymed top`: a run on a live terminal. Pure views of a snapshot, a thin shell that owns the terminal, a poller."""
