"""What a run asks of a Ray cluster, and the sentences about what is missing. Needs no Ray."""

import msgspec
import pytest

from rhymed.core.config import Config
from rhymed.core.errors import ConfigError
from rhymed.core.run.layout import layout_of
from rhymed.core.wire.keys import ROLES, make_keys
from rhymed.placement.plan import Seat, seats
from rhymed.placement.ray import cluster
from rhymed.placement.ray.cluster import problems
from rhymed.placement.ray.placer import Node, Ready, Start, ToPlacer
from rhymed.placement.ray.starter import order
from rhymed.start.cli import main

TRACE = {"rollout": {"engine": "trace", "workers": 3}, "trainer": {"engine": "trace"}}
RAY = {"engine": "ray"}


def seat(config: Config, name: str) -> Seat:
    return next(one for one in seats(config) if one.name == name)


def test_what_fits_has_no_problem_and_what_does_not_is_named_with_a_cure() -> None:
    config = Config(**TRACE, reward={"processes": 1})
    nodes = [Node("10.0.0.1", 0), Node("10.0.0.2", 3), Node("10.0.0.3", 2)]
    assert list(problems(config, nodes)) == []
    (why,) = problems(config, nodes[:2])
    assert why.startswith("the run's processes need 5 CPUs, and Ray's 2 nodes have 3: lower ")
    assert "or add nodes" in why


def test_gpus_are_counted_and_an_elastic_run_starts_with_few_workers() -> None:
    nodes = [Node("10.0.0.1", 16, 8), Node("10.0.0.2", 16, 8)]
    gang = {"trainer": {"gpus": 8, "nodes": 2}, "placement": RAY, "reward": {"processes": 1}}
    (why,) = problems(Config(**gang, rollout={"workers": 1, "tensor_parallel": 4}), nodes)
    assert "need 20 GPUs, and Ray's 2 nodes have 16" in why
    less = {"trainer": {"gpus": 4}, "rollout": {"workers": 9, "tensor_parallel": 2}, "reward": {"processes": 1}}
    (why,) = problems(Config(**less), nodes)
    assert "need 22 GPUs" in why
    assert "with placement.max the run starts with fewer" in why
    assert list(problems(Config(**less, placement={"max": 9}), nodes)) == []


def test_a_process_gets_its_own_secret_and_no_other(tmp_path) -> None:
    make_keys(tmp_path / "keys", ROLES)
    config = Config(**TRACE, run={"folder": str(tmp_path)}, net={"keys": str(tmp_path / "keys")}, placement=RAY)
    config = cluster.addressed(config, "127.0.0.1")
    layout = layout_of(config)
    layout.folder.mkdir()
    layout.config.write_text(config.model_dump_json())
    for name in ("trainer", "rollout", "reward"):
        start = order(config, layout, seat(config, name), 0, 1, tmp_path / "out")
        assert set(start.order.files) == {"config.json", "keys/public", f"keys/{name}.secret"}
        assert start.order.environment["RHYMED_NET__KEYS"] == "{folder}/keys"
        assert start.order.arguments[-1] == "{folder}/config.json"
        assert bool(start.order.needs) == (name == "trainer"), "checkpoints are read where the trainer starts again"
        assert msgspec.json.decode(msgspec.json.encode(start), type=ToPlacer) == start
    gang = config.model_copy(update={"trainer": config.trainer.model_copy(update={"nodes": 2, "engine": "torch"})})
    second: Start = order(gang, layout, seat(gang, "trainer"), 1, 2, tmp_path / "out")
    assert (second.gang, second.number, second.name) == (2, 1, "trainer-node-1")
    assert second.order.environment["RHYMED_NET__RANKS"] == "tcp://{ranks}:5553"


def test_broker_and_store_have_addresses_that_others_reach() -> None:
    given = Config(**TRACE, placement=RAY)
    net = cluster.addressed(given, "127.0.0.1").net
    assert net.broker.startswith("tcp://127.0.0.1:")
    assert net.broker != net.store
    moved = {"broker": "tcp://192.0.2.77:7701", "store": "tcp://127.0.0.1:7702", "insecure": True}
    net = cluster.addressed(Config(**TRACE, placement=RAY, net=moved), "127.0.0.1").net
    assert net.broker == "tcp://127.0.0.1:7701", "the run was resumed on another machine"
    assert net.store == "tcp://127.0.0.1:7702"
    with pytest.raises(ConfigError, match="make keys with `rhymed keygen FOLDER`"):
        cluster.addressed(given, "10.0.0.7")


@pytest.mark.parametrize(
    ("environment", "placement", "why"),
    [
        ({}, {"address": "127.0.0.1:9"}, "nothing answers at 127.0.0.1:9, the address of Ray's head"),
        ({"RAY_ADDRESS": "127.0.0.1:9"}, {}, "nothing answers at 127.0.0.1:9"),
        ({"RAY_ADDRESS": "ray://10.0.0.1:10001"}, {}, "ray job submit -- rhymed run"),
    ],
)
def test_a_ray_that_is_not_there_is_a_sentence(tmp_path, monkeypatch, capsys, environment, placement, why) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(cluster, "find_spec", lambda name: object())
    file = tmp_path / "c.json"
    file.write_text(Config(**TRACE, run={"folder": str(tmp_path)}, placement=RAY | placement).model_dump_json())
    assert main(["run", str(file)]) == 2
    assert why in capsys.readouterr().err
    assert not (tmp_path / "run").exists(), "nothing was created"
    monkeypatch.setattr(cluster, "find_spec", lambda name: None)
    assert main(["run", str(file)]) == 2
    assert "needs the package ray: pip install 'rhymed[ray]'" in capsys.readouterr().err


def test_what_the_machines_lack_is_an_error_before_the_run(monkeypatch) -> None:
    nodes = [Node("127.0.0.1", 0), Node("127.0.0.2", 2, 0, 4.0)]
    monkeypatch.setattr(cluster, "reach", lambda config: Ready("127.0.0.1:6379", "127.0.0.1", nodes))
    with pytest.raises(ConfigError, match="need 5 CPUs, and Ray's 2 nodes have 2"):
        cluster.prepared(Config(**TRACE, placement=RAY, reward={"processes": 1}))


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"placement": {"min": 3, "max": 2}}, "min = 3 is more than max = 2"),
        ({"placement": {"max": 2}, "rollout": {"workers": 3}}, "is not between placement.min = 0 and placement.max"),
        ({"placement": {"engine": "ray"}, "schedule": {"colocate": True}}, "gives each process its own"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(sections, why) -> None:
    with pytest.raises(ValueError, match=why):
        Config(**sections)
