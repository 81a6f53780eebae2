"""`rhymed bench whole`: what scheduling, drafts, both and staleness 1 gain over plain training."""
