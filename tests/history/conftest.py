from tests.history.fixtures import make_run, rhymed, run, tokenizer

__all__ = ["make_run", "rhymed", "run", "tokenizer"]
