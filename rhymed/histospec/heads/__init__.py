"""A learned drafter in addition to history: a small network on the policy's last hidden state.

`model` is the network and draws drafts from it with the sampler's noise, `attach` runs it in an engine, and `combine`
puts its drafts among those of history where its pass pays. `fit`, `run` and `refit` train and measure it outside an
engine; `place` says where its file is.
"""
