"""A learned drafter beside history: a small network on the policy's last hidden state.

`model` is the network, `draw` draws drafts from it with the sampler's noise, `worth` says when its pass pays, and
`mixed` puts its drafts among those of history. `samples`, `fit` and `score` train and measure it outside an engine.
"""
