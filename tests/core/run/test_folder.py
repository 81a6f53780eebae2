import errno
import os
from pathlib import Path
from typing import Any

import pytest

from rhymed.core.config import Config, Environment, Lora, Run, Trainer
from rhymed.core.config.load import load_config
from rhymed.core.errors import ConfigError, FilesLost, RunMismatch, StoreError
from rhymed.core.run import folder
from rhymed.core.run.layout import ID, layout_of
from rhymed_store.database.transactions import Database


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(run=Run(name="first", folder=str(tmp_path)))


def test_a_taken_name_gets_a_number_and_the_old_folder_stays(config: Config, tmp_path: Path) -> None:
    _, one = folder.create(config)
    again, two = folder.create(config)
    assert one.folder == tmp_path / "first"
    assert again.run.name == "first-2"
    assert two.folder == tmp_path / "first-2"
    assert (tmp_path / "latest").resolve() == two.folder


def test_storage_without_locks_is_guarded_by_the_lease_alone(
    config: Config, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As some network file systems."""
    _, where = folder.create(config)

    def missing(file: object, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(folder.fcntl, "flock", missing)
    with folder.hold(where) as held:
        assert not held.locked
        assert folder.holder(where.folder) is None
        assert "cannot be locked (No locks available): its lease alone keeps others out" in caplog.text
    with pytest.raises(StoreError, match=r"cannot be locked \(No locks available\), as on some network file systems"):
        Database(where.database, 1 << 20)


def test_a_long_name_that_is_taken_gets_a_number_and_can_be_read(config: Config) -> None:
    for number in range(1, 12):
        made, where = folder.create(config.model_copy(update={"run": Run(name="x" * 100, folder=config.run.folder)}))
        assert load_config(where.config, environ={}).run.name == made.run.name
        assert made.run.name.endswith("x" if number == 1 else f"-{number}")


def test_other_commands_read_the_same_places_from_the_saved_configuration(config: Config) -> None:
    made, where = folder.create(config)
    read = load_config(where.config, environ={})
    assert layout_of(read) == where
    assert read.trainer == made.trainer


def test_a_second_supervisor_is_kept_out(config: Config) -> None:
    _, where = folder.create(config)
    assert folder.holder(where.folder) is None
    who = os.getpid()
    with folder.hold(where):
        assert folder.holder(where.folder) == who
        reported = pytest.raises(ConfigError, match=rf"in use by a running `rhymed run` \(process {who}\)")
        with reported, folder.hold(where):
            pass
    assert folder.holder(where.folder) is None
    with folder.hold(where):
        pass


def test_metrics_survive_a_cut_line_and_repeated_steps(config: Config) -> None:
    _, where = folder.create(config)
    where.metrics.write_text('{"step": 1, "reward/mean": 0.1}\n{"step": 0}\n{"step": 1, "reward/mean": 0.2}\n{"st')
    assert folder.read_metrics(where) == [{"step": 0}, {"step": 1, "reward/mean": 0.2}]


def test_a_run_is_resumed_with_the_adapters_that_it_has(config: Config) -> None:
    """With other ones, or without, its checkpoints mean nothing."""
    where = layout_of(config)

    def trained(lora: Lora | None) -> Config:
        return config.model_copy(update={"trainer": Trainer(lora=lora)})

    folder.check_same(trained(Lora(rank=8)), trained(Lora(rank=8)), where)
    for other in (Lora(rank=4), None):
        with pytest.raises(RunMismatch, match=r"belongs to another run: trainer\.lora = .*\(it was \{'rank': 8"):
            folder.check_same(trained(Lora(rank=8)), trained(other), where)
    with pytest.raises(RunMismatch, match=r"\(it was None\)"):
        folder.check_same(trained(None), trained(Lora()), where)


def test_a_critic_neither_comes_nor_goes_when_a_run_is_resumed(config: Config) -> None:
    where = layout_of(config)

    def trained(**trainer: Any) -> Config:
        return config.model_copy(update={"trainer": Trainer.model_validate(trainer)})

    without, with_one = trained(), trained(algorithm="ppo")
    folder.check_same(with_one, trained(algorithm="ppo", lr=1e-4, critic={"lr": 1e-4}), where)
    folder.check_same(without, trained(algorithm="rloo"), where)
    for earlier, now in (
        (without, with_one),
        (with_one, without),
        (with_one, trained(algorithm="ppo", critic={"model": "x"})),
    ):
        with pytest.raises(RunMismatch, match=r"belongs to another run: trainer\.critic = "):
            folder.check_same(earlier, now, where)


def test_environments_neither_come_nor_go_when_a_run_is_resumed(config: Config) -> None:
    """The store has samples in turns, which nobody would answer, or samples without them."""
    with_tools = config.model_copy(update={"environment": Environment(tools="mine.py:add")})
    others = config.model_copy(update={"environment": Environment(tools="mine.py:add,multiply")})
    for earlier, now in ((config, with_tools), (with_tools, config)):
        _, where = folder.create(earlier)
        folder.check_same(earlier, earlier, where)
        with pytest.raises(RunMismatch, match="environment = "):
            folder.check_same(earlier, now, where)
    folder.check_same(with_tools, others, where)


def test_small_files_that_are_removed_are_written_again(config: Config) -> None:
    _, where = folder.create(config)
    kept = {name: (where.folder / name).read_bytes() for name in ("config.json", ID)}
    with folder.hold(where) as held:
        for name in (*kept, folder.LOCK):
            (where.folder / name).unlink()
        assert folder.holder(where.folder) is None
        held.check()
        assert {name: (where.folder / name).read_bytes() for name in kept} == kept
        assert folder.holder(where.folder) == os.getpid()
    assert folder.holder(where.folder) is None


def test_a_lock_that_was_removed_and_taken_by_another_ends_the_run(config: Config) -> None:
    _, where = folder.create(config)
    with folder.hold(where) as held:
        (where.folder / folder.LOCK).unlink()
        with folder.hold(where), pytest.raises(FilesLost, match=r"lock of this run was removed, and .* is in use by"):
            held.check()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_folder_that_is_gone_ends_the_run(config: Config, tmp_path: Path, replaced: bool) -> None:
    _, where = folder.create(config)
    with folder.hold(where) as held:
        held.check()
        where.folder.rename(tmp_path / "elsewhere")
        if replaced:
            where.folder.mkdir()
        with pytest.raises(FilesLost, match="was removed, moved or replaced while the run was working"):
            held.check()
