"""The control plane: which sample is where, who is alive, what runs next. Small messages only.

There is no training loop: what arrives changes the ledger, and the ledger says what is next. `ledger/ledger.py` also
says what a step, a version and a state are. Policies that decide who generates what are in `scheduler`.
"""
