"""Where code that is not rhymed's runs: users' code in a jail, programs that a policy wrote in a sandbox."""
