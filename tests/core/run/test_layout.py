from pathlib import Path

import pytest

from rhymed.core.config import Config
from rhymed.core.run.layout import layout_of


def test_all_processes_of_a_run_agree_wherever_they_are_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here = layout_of(Config.model_validate({"run": {"folder": "runs", "name": "a"}}))
    there = layout_of(Config.model_validate({"run": {"folder": str(tmp_path / "x" / ".." / "runs"), "name": "a"}}))
    assert here == there
    assert here.folder == tmp_path / "runs" / "a"


def test_runs_do_not_share_an_address_and_long_folders_fit_into_a_socket_path(tmp_path: Path) -> None:
    folder = str(tmp_path / ("long" * 40))
    found = [layout_of(Config.model_validate({"run": {"folder": folder, "name": name}})) for name in ("a", "b")]
    addresses = [address for one in found for address in (one.broker, one.store, one.weights)]
    assert len(set(addresses)) == 6
    assert all(len(address.removeprefix("ipc://")) <= 107 for address in addresses)


def test_addresses_of_the_configuration_are_kept() -> None:
    found = layout_of(Config.model_validate({"net": {"broker": "tcp://127.0.0.1:7000"}}))
    assert found.broker == "tcp://127.0.0.1:7000"
    assert found.store.startswith("ipc://")


def test_everything_of_a_run_lies_in_its_folder(tmp_path: Path) -> None:
    found = layout_of(Config.model_validate({"run": {"folder": str(tmp_path), "name": "a"}}))
    paths = [found.database, found.checkpoints, found.metrics, found.tensorboard, found.config, found.log("broker")]
    assert len(set(paths)) == len(paths)
    assert all(path.is_relative_to(tmp_path / "a") for path in paths)
