"""The dashboard of several runs: `rhymed view runs/`. Each run's own page is served below it."""
