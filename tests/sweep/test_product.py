"""Which runs a sweep has, what they are called, and how many fit."""

from __future__ import annotations

import pytest

from rhymed.check.memory import Machine
from rhymed.config.load import load_config
from rhymed.errors import ConfigError
from rhymed.gpus.inventory import Gpu, Inventory
from rhymed.sweep.places import AROUND, Load, load_of, places
from rhymed.sweep.product import Axis, axes_of, combinations, names, split

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1e-6,1e-5", ["1e-6", "1e-5"]),
        ("grpo, dapo", ["grpo", "dapo"]),
        ("[0.9,0.95],[0.9,0.99]", ["[0.9,0.95]", "[0.9,0.99]"]),
        ("{size=4,task='a,b'},{size=8}", ["{size=4,task='a,b'}", "{size=8}"]),
        ('"a, b",c', ['"a, b"', "c"]),
        ('"a\\", b",c', ['"a\\", b"', "c"]),
        ("don't,do", ["don't", "do"]),
        ("[1,2", ["[1,2"]),
        ("'a,b", ["'a,b"]),
        ("1", ["1"]),
        ("1,", ["1", ""]),
    ],
)
def test_commas_separate_values_unless_they_are_within_one(text: str, values: list[str]) -> None:
    assert split(text) == values


def test_the_product_varies_the_last_setting_fastest() -> None:
    axes, fixed = axes_of(["trainer.lr=1e-6,1e-5", "run.seed=0,1", "trainer.epochs=2"])
    assert fixed == ["trainer.epochs=2"]
    assert [tuple(each.values()) for each in combinations(axes)] == [
        ("1e-6", "0"), ("1e-6", "1"), ("1e-5", "0"), ("1e-5", "1"),
    ]  # fmt: skip
    assert list(names(axes).values())[1] == "lr-1e-6_seed-1"


def test_names_are_plain_and_differ() -> None:
    long = "configs/" + "x" * 40
    axes = [
        Axis("data.path", ("a/b.jsonl", "a b.jsonl")),
        Axis("model.path", ("m1", "m2")),
        Axis("reward.scorer", (long, "exact")),
        Axis("trainer.betas", ("[0.9,0.95]", "[0.9,0.99]")),
    ]
    found = list(names(axes).values())
    assert len(set(found)) == 16
    assert found[0] == "data.path-1_model.path-m1_scorer-1_betas-0.9-0.95"
    for name in found:
        load_config(None, (), {}, {"run.name": name})


@pytest.mark.parametrize(("axes", "last"), [(3, "betas0-0.9-0.99-x"), (6, "betas0-2_"), (12, "2_2_2")])
def test_names_of_many_settings_are_those_of_runs(axes: int, last: str) -> None:
    values = "0.9-0.95-xxxxxxxxx", "0.9-0.99-xxxxxxxxx"
    found = names([Axis(f"trainer.betas{at}", values) for at in range(axes)])
    assert len(set(found.values())) == 2**axes
    assert list(found.values())[-1].startswith(last)
    for name in (min(found.values()), max(found.values(), key=len)):
        load_config(None, (), {}, {"run.name": name})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["trainer.lr=1e-6"], "no setting has several values"),
        (["trainer.lr=1,2,"], "nothing between two commas"),
        (["trainer.lr=1,1"], "differ by run.seed"),
        (["run.name=a,b"], "names its runs itself"),
        (["trainer.lr=1,2", "trainer.lr=3,4"], "give its values in one option"),
        (["trainer.lr=1,2", "trainer.lr=3"], "give its values in one option"),
    ],
)
def test_mistakes_are_explained(options: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        axes_of(options)


def machine(gib: float) -> Machine:
    return Machine(int(64 * GIB), int(gib * GIB), 0, 0)


def test_as_many_runs_as_fit_into_memory() -> None:
    loads = [Load(1.5 * GIB), Load(1.0 * GIB), Load(1.0 * GIB)]
    assert AROUND == 0.5 * GIB
    assert len(places(None, loads, machine(4.5), None)) == 2
    assert len(places(None, loads, machine(40), None)) == 3, "there are no more"
    assert len(places(1, loads, machine(0.1), None)) == 1
    found = places(3, loads, machine(4.5), None)
    assert (len(found), found.why) == (2, "each needs about 2.0 GiB, 4.5 GiB are available")
    assert len(places(2, loads, machine(0.1), None)) == 1, "a check decides whether one fits"


def test_runs_at_once_get_gpus_of_their_own() -> None:
    inventory = Inventory((tuple([Gpu("H100", 80 * GIB)] * 8),), tuple("01234567"))
    config = load_config(None, (), {}, {"trainer.gpus": 2, "rollout.workers": 1, "trainer.device": "cuda"})
    load = load_of(config, GIB, inventory)
    assert load.gpus == 3
    found = places(None, [load] * 4, machine(40), inventory)
    assert [dict(each) for each in found.environments] == [
        {"CUDA_VISIBLE_DEVICES": "0,1,2"}, {"CUDA_VISIBLE_DEVICES": "3,4,5"},
    ]  # fmt: skip
    assert places(4, [load] * 4, machine(40), inventory).why == "each takes 3 GPUs of 8"
