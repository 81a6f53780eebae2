"""HistoSpec: the same prompt's earlier responses and running siblings as drafts, verified exactly.

`index` and `draft` find drafts, `budget` decides how many of them a step verifies, `drafter` puts both together for
a batch of running requests. `noise`, `keyed` and `sampler` draw tokens from position-keyed noise. `plugin` and
`proposer` are how all of it gets into vLLM.
"""
