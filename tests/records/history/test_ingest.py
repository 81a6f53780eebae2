"""`rhymed history import`: into folders of runs to come and into living stores, and what is refused."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rhymed.core.config.load import load_config
from rhymed.core.messages import EVAL, SampleId
from rhymed.core.run import folder as runs
from rhymed.core.run.layout import layout_of
from rhymed.records.history.folder import open_folder
from rhymed_store.client import StoreClient
from rhymed_store.service import StoreService
from tests.records.history.folders import APPLES, PEARS, ROWS, two_epochs
from tests.store.stores import start_process

CONFIG = """
[run]
name = "next"
folder = "{folder}"
[data]
path = "{folder}/rows.jsonl"
[rollout]
engine = "trace"
prompts_per_step = 1
[trace]
vocabulary = 258
[store]
map_gib = 0.1
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "next.toml"
    file.write_text(CONFIG.format(folder=tmp_path))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return file


def found_in(folder: Path, prompt: str = APPLES) -> list[tuple[int, int, list[int], float | None]]:
    with open_folder(folder) as run:
        responses = run.browse.responses(prompt)
    return [(one.info.id.step, one.info.id.index, one.tokens.tolist(), one.info.reward) for one in responses]


def expected(prompt: str = APPLES) -> list[tuple[int, int, list[int], float | None]]:
    first = min(step for step, given, *_ in two_epochs() if given == prompt)
    return sorted(
        (-2 if step == first else -1, index, tokens, reward)
        for step, given, index, tokens, reward in two_epochs()
        if given == prompt
    )


@pytest.mark.parametrize("through", ["folder", "backup"])
def test_epochs_become_history_of_the_next_run(run: Path, config: Path, tmp_path: Path, rhymed, through: str) -> None:
    source = run
    if through == "backup":
        source = tmp_path / "copy"
        rhymed("backup", run, source)
        shutil.rmtree(run)
    status, out, err = rhymed("import", config, source)
    assert (status, err) == (0, "")
    assert "next: 8 samples of 2 prompts imported, 124 tokens, as steps -2 to -1" in out
    assert "starts with this history, as run next" in out
    assert found_in(tmp_path / "next") == expected()
    assert found_in(tmp_path / "next", PEARS) == expected(PEARS)
    status, out, _ = rhymed("import", config, source)
    assert "0 samples of 0 prompts imported\nleft out 8 samples: already imported" in out
    assert found_in(tmp_path / "next") == expected()


def test_imported_samples_keep_their_turns(in_turns: Path, config: Path, tmp_path: Path, rhymed) -> None:
    """Without their calls, which no draft needs."""
    assert rhymed("import", config, in_turns)[0] == 0
    with open_folder(tmp_path / "next") as run:
        found = run.browse.responses(APPLES)
    assert [(one.info.id.step, one.info.turns) for one in found] == [(-1, [4, 2, 3]), (-1, [2, 3, 1]), (-1, [3])]


async def test_the_run_that_follows_uses_the_folder_and_finds_it(run: Path, config: Path, rhymed) -> None:
    import asyncio

    await asyncio.to_thread(rhymed, "import", config, run)
    made, where = runs.create(load_config(config))  # as `rhymed run` does
    assert made.run.name == "next"
    async with StoreService(made.store, where).running():
        with contextlib.closing(StoreClient(where.store, "test")) as client:
            await client.open_run("next", "f")
            lengths = await client.lengths([APPLES], 0)
            assert lengths[APPLES].lengths == [(-2, 10), (-2, 11), (-1, 10), (-1, 11)]
            history = await client.history(APPLES, 5)
            assert [stored.info.reward for stored in history] == [1.0, 1.0, 0.0, 0.5]
            assert (await client.journal(-(2**31))).entries == []


def test_a_name_that_is_taken_gets_the_folder_that_the_next_run_will_have(
    run: Path, config: Path, tmp_path: Path, rhymed
) -> None:
    runs.create(load_config(config))
    _, out, _ = rhymed("import", config, run)
    assert "as run next-2" in out
    assert found_in(tmp_path / "next-2") == expected()
    _, out, _ = rhymed("import", tmp_path / "next", run)  # this very one, to be resumed
    assert "starts with" not in out
    assert found_in(tmp_path / "next") == expected()


def test_what_is_not_history_is_left_out_and_counted(make_run, config: Path, tmp_path: Path, rhymed) -> None:
    other = "f" * 16
    more = [
        (EVAL, APPLES, 0, [5], 1.0),
        (9, APPLES, 0, [], None),
        (0, other, 0, [5, 6], None),
        (-1, PEARS, 0, [4], 1.0),
    ]
    folder = make_run("mixed", [*two_epochs(), *more], dropped=[SampleId(2, APPLES, 1)])
    _, out, _ = rhymed("import", config, folder)
    assert "8 samples of 2 prompts imported" in out
    assert "steps -3 to -1" in out  # imported history of that run is older still
    for line in (
        "left out 1 sample: evaluations of held-out prompts",
        "left out 1 sample: dropped in that run",
        "left out 1 sample: empty or aborted",
        "left out 1 sample: of prompts that are not in the new run's data (--all imports them too)",
    ):
        assert line in out
    _, out, _ = rhymed("import", config, folder, "--all")
    assert "1 sample of 1 prompt imported" in out
    assert found_in(tmp_path / "next", other) == [(-1, 0, [5, 6], None)]


def test_another_import_at_the_same_place_is_reported_and_changes_nothing(
    run: Path, make_run, config: Path, tmp_path: Path, rhymed
) -> None:
    rhymed("import", config, run)
    other = make_run("other", [(0, APPLES, 0, [1, 2, 3], None), (0, APPLES, 5, [1, 2, 3], None)])
    _, out, _ = rhymed("import", config, other)
    assert "1 sample of 1 prompt imported" in out
    assert "left out 1 sample: another import has their steps" in out
    assert expected()[2] in found_in(tmp_path / "next")


@pytest.fixture
def living(config: Path) -> Iterator[Path]:
    """A run whose store process is alive."""
    made, where = runs.create(load_config(config))
    process = start_process(made)
    try:
        yield where.folder
    finally:
        process.kill()
        process.wait(10)


async def test_a_living_store_is_read_beside_and_written_through_its_socket(
    run: Path, config: Path, living: Path, rhymed: Callable[..., tuple[int, str, str]]
) -> None:
    import asyncio

    where = layout_of(load_config(config))
    with contextlib.closing(StoreClient(where.store, "test")) as client:
        await client.stats()  # it is up
        status, out, err = await asyncio.to_thread(rhymed, "import", config, run)
        assert (status, err) == (0, "")
        assert "next: 8 samples of 2 prompts imported" in out
        assert [stored.info.id.step for stored in await client.history(APPLES, 0)] == [-1, -1, -2, -2]
    assert found_in(living) == expected()
    assert "imported -2" in (await asyncio.to_thread(rhymed, "stats", living))[1]


def test_token_ids_that_the_model_does_not_have_are_refused_before_anything_is_written(
    run: Path, config: Path, tmp_path: Path, rhymed
) -> None:
    status, _, err = rhymed("import", config, run, "-o", "trace.vocabulary=60")
    assert status == 2
    assert "next.toml has 60 tokens, but sample" in err
    assert "nothing was imported" in err
    assert not (tmp_path / "next").exists()


@pytest.mark.slow
def test_another_tokenizer_is_refused(run: Path, config: Path, tiny_model: Path, tmp_path: Path, rhymed) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    use = ("-o", "rollout.engine=vllm", "-o", f"model.path={model}", "-o", "rollout.max_prompt_length=8")
    use += ("-o", "rollout.max_response_length=64")
    assert rhymed("import", config, run, *use)[0] == 0  # of the same family
    text = (model / "tokenizer.json").read_text()
    (model / "tokenizer.json").write_text(text.replace('"<pad>"', '"<blank>"'))
    status, _, err = rhymed("import", config, run, *use)
    assert (status, "has another tokenizer (264 tokens, fingerprint" in err) == (2, True)


def test_sources_that_are_none_are_reported(run: Path, config: Path, tmp_path: Path, rhymed) -> None:
    for source, complaint in (("gone", "does not exist"), ("rows.jsonl", "has no store in it")):
        status, _, err = rhymed("import", config, tmp_path / source)
        assert (status, complaint in err) == (2, True), err
    status, _, err = rhymed("import", run, run)
    assert (status, "is the folder of CONFIG's own run" in err) == (2, True)
