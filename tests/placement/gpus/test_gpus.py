"""GPUs that are found or assumed, and which process has which of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from rhymed.core.config import Config
from rhymed.core.errors import ConfigError
from rhymed.placement import gpus, plan
from rhymed.placement.gpus import GIB, Gpu, Inventory, parse, read

LISTING = (
    "0, GPU-aa, NVIDIA H100 80GB HBM3, 81559\n1, GPU-bb, NVIDIA H100 80GB HBM3, 81559\n2, GPU-cc, NVIDIA L4, 23034\n"
)
H100 = Gpu("H100", 80 * GIB)


def config(**sections: Any) -> Config:
    return Config.model_validate(sections)


@pytest.mark.parametrize(
    ("text", "nodes", "shown"),
    [
        ("8x H100 80GB", 1, "8 x H100 (80 GiB)"),
        ("H100 80GB", 1, "1 x H100 (80 GiB)"),
        ("1x RTX 4090 24GB", 1, "1 x RTX 4090 (24 GiB)"),
        ("8xH100 80GB", 1, "8 x H100 (80 GiB)"),
        ("2 NODES OF 8 x H100 80GB", 2, "2 nodes of 8 x H100 (80 GiB)"),
        ("4 nodes of 8x H100 80 GB", 4, "4 nodes of 8 x H100 (80 GiB)"),
        ("4x H100 80GB + 4x A100 40GB", 1, "4 x H100 (80 GiB) + 4 x A100 (40 GiB)"),
    ],
)
def test_gpus_may_be_assumed(text: str, nodes: int, shown: str) -> None:
    assumed = parse(text)
    assert (len(assumed.nodes), str(assumed)) == (nodes, shown)


@pytest.mark.parametrize(
    "text",
    [
        "", "8", "8x H100", "eight H100", "0x H100 80GB", "0 nodes of H100 80GB", "80GB", "-1x H100 80GB",
        "8x H100 0GB", "99999999x H100 80GB", "99999 nodes of 8x H100 80GB", "8x H100 80GB +", f"H100 {'9' * 400}GB",
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="8x H100 80GB"):
        parse(text)


def test_gpus_that_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(read(LISTING)) == "2 x NVIDIA H100 80GB HBM3 (80 GiB) + 1 x NVIDIA L4 (22 GiB)"
    assert str(read(LISTING, "1,0")) == "2 x NVIDIA H100 80GB HBM3 (80 GiB)"
    found = read(LISTING, "GPU-cc")
    assert found is not None
    assert found.names == ("2",)
    assert read(LISTING, "") is None
    assert read("no devices were found\n") is None
    shared = "0, GPU-dd, NVIDIA GB10, [N/A]\n"
    assert read(shared) is None, "its memory is the host's"
    assert str(read(shared + LISTING, "GPU-dd,GPU-cc")) == "1 x NVIDIA L4 (22 GiB)"
    monkeypatch.setattr(gpus, "QUERY", (sys.executable, "-c", f"print({LISTING!r})"))
    monkeypatch.setattr(gpus.metadata, "version", lambda package: "2.11.0+cu130")
    assert gpus.here({"CUDA_VISIBLE_DEVICES": "1"}) == read(LISTING, "1")
    monkeypatch.setattr(gpus.metadata, "version", lambda package: "2.13.0+cpu")
    assert gpus.here({}) is None
    monkeypatch.setattr(gpus.metadata, "version", lambda package: "2.11.0")
    monkeypatch.setattr(gpus, "QUERY", ("no-such-program",))
    assert gpus.here({}) is None


def test_engines_get_the_gpus_after_the_trainers() -> None:
    run = config(trainer={"gpus": 2}, rollout={"workers": 3, "tensor_parallel": 2})
    found = [(seat.name, seat.gpus) for seat in gpus.seats(run, parse("8x H100 80GB"))]
    assert found == [("trainer", (0, 1)), ("rollout-0", (2, 3)), ("rollout-1", (4, 5)), ("rollout-2", (6, 7))]
    assert list(gpus.problems(run, parse("8x H100 80GB"))) == []


def test_colocated_engines_get_the_trainers_gpus() -> None:
    run = config(trainer={"gpus": 2}, rollout={"workers": 2}, schedule={"colocate": True})
    found = [(seat.name, seat.gpus) for seat in gpus.seats(run, parse("2x H100 80GB"))]
    assert found == [("trainer", (0, 1)), ("rollout-0", (0,)), ("rollout-1", (1,))]
    assert list(gpus.problems(run, parse("2x H100 80GB"))) == []


def test_what_computes_on_processors_gets_none() -> None:
    run = config(trainer={"device": "cpu"}, rollout={"workers": 2})
    assert [seat.name for seat in gpus.seats(run, parse("2x H100 80GB"))] == ["rollout-0", "rollout-1"]
    dry = config(trainer={"engine": "trace"}, rollout={"engine": "trace"})
    assert gpus.seats(dry, parse("2x H100 80GB")) == []


@pytest.mark.parametrize(
    ("sections", "machines", "cure"),
    [
        ({"trainer": {"gpus": 4}}, "2x H100 80GB", "more ranks than devices; lower them"),
        (
            {
                "trainer": {"gpus": 8, "nodes": 2},
                "net": {"ranks": "tcp://10.0.0.1:5553"},
                "rollout": {"workers": 0},
            },
            "8x H100 80GB",
            "2 x 8, but there are 8 x H100",
        ),
        ({"rollout": {"workers": 2}}, "2x H100 80GB", "only 1 find GPUs"),
        ({"rollout": {"workers": 1}}, "1x H100 80GB", "set schedule.colocate = true"),
        ({"rollout": {"tensor_parallel": 8}}, "4x H100 80GB", "a machine has 4: lower one of them"),
        ({"rollout": {"workers": 1}}, "1x H100 80GB + 1x L4 24GB", "GPUs of several kinds (L4 (24 GiB) and H100"),
    ],
)
def test_what_finds_no_gpu_is_an_error_with_a_cure(sections: dict[str, Any], machines: str, cure: str) -> None:
    found = list(gpus.problems(config(**sections), parse(machines)))
    assert len(found) == 1
    assert cure in found[0]


def test_of_several_machines_only_this_one_is_looked_at() -> None:
    several = {"trainer": {"gpus": 3, "nodes": 2}, "net": {"ranks": "tcp://10.0.0.1:5553"}}
    here = Inventory(((H100,) * 4,), ("0", "1", "2", "3"))
    run = config(rollout={"workers": 1}, **several)
    assert list(gpus.problems(run, here.alike(2))) == []
    assert "rollout.workers = 2" in next(gpus.problems(config(rollout={"workers": 2}, **several), here.alike(2)))
    assert gpus.visible(run, here)["rollout-0"] == {"CUDA_VISIBLE_DEVICES": "3"}


def test_processes_that_are_started_here_see_their_gpus_only() -> None:
    run = config(trainer={"gpus": 1}, rollout={"workers": 2})
    here = Inventory(((H100, H100, H100),), ("1", "4", "6"))
    environments = gpus.visible(run, here)
    started = plan.commands(run, Path("c.json"), environments)
    seen = {one.name: one.environment.get("CUDA_VISIBLE_DEVICES") for one in started}
    assert seen == {
        "store": None, "broker": None, "trainer": "1", "rollout-0": "4", "rollout-1": "6", "reward-0": None
    }  # fmt: skip
    only_evaluates = config(trainer={"steps": 0}, rollout={"workers": 1})
    found = gpus.visible(only_evaluates, here)
    assert {name: one["CUDA_VISIBLE_DEVICES"] for name, one in found.items()} == {"rollout-0": "1", "trainer": ""}
    assert gpus.visible(run, None) == {}
    assert gpus.visible(run, parse("8x H100 80GB")) == {}, "assumed ones are not here"
