from tests.broker.fixtures import cluster, config, pipelined, story

__all__ = ["cluster", "config", "pipelined", "story"]
