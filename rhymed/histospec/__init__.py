"""HistoSpec: a prompt's earlier responses and running siblings as drafts, verified exactly.

`index` holds a prompt's history, `drafts` finds drafts in it and decides how many a step verifies, `drafter` does
both for a batch of running requests. `sampling` draws tokens with position-keyed noise. `plugin` and `proposer`
connect it to vLLM.
"""
