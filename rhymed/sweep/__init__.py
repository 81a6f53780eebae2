"""`rhymed sweep`: a run for every combination of settings, as child processes, in a folder that can be continued."""
