"""Dynamic sampling: which groups have no signal, and which prompts replace them. Pure, part of the ledger."""
