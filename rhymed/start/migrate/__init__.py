"""Translates the configuration of another framework, TRL's GRPOTrainer or verl, into a configuration of rhymed.

The source is read, never executed: a script is parsed, a shell script is searched for settings. Each framework has a
table (`trl`, `verl`) whose entries are pure functions from its settings to ours; `translate` applies it, `document`
writes the result. What has no counterpart is a `Note` with one reason.
"""

from rhymed.start.migrate.entries import Note as Note
from rhymed.start.migrate.migration import Migration as Migration
from rhymed.start.migrate.migration import migrate as migrate
