"""The thin shell around the ledger: performs its actions, and feeds it events."""
