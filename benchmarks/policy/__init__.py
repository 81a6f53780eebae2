"""The small reasoning model on which `bench spec` and `bench index` run."""
