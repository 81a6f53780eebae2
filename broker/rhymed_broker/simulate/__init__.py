"""A run in virtual time: the real ledger and policies, emulated workers, from 2 to 4,096 of them."""
