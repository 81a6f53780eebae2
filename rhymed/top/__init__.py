"""`rhymed top`: a run on a live terminal.

Pure views of a snapshot (`paint` and what it puts together), a thin shell that owns the terminal (`app`), one poller.
"""
