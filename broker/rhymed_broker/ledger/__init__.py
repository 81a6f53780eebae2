"""The state of every sample. Pure: events and the time come in, actions come out. `ledger.py` explains it."""
