"""LMDB: tables, transactions, group commit, reads and writes."""
