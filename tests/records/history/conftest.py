from tests.records.history.fixtures import in_turns, make_run, rhymed, run, tokenizer

__all__ = ["in_turns", "make_run", "rhymed", "run", "tokenizer"]
