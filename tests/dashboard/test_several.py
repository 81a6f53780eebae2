"""The dashboard of several runs: its answers, and its page in a real browser."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from rhymed.cli.live.dashboard import live_of
from rhymed.dashboard.auth import AccessControl
from rhymed.dashboard.several import curves, registry
from rhymed.dashboard.several.registry import id_of
from rhymed.dashboard.several.server import serving_several
from rhymed.messages import EVAL
from rhymed.run.progress import Progress
from rhymed.several.rows import Files
from rhymed.wire.addresses import HttpAddress
from tests.dashboard.browser import Browser, Loop, find
from tests.history.folders import APPLES, PEARS, write_store, write_tokenizer
from tests.several.folders import NOW, make

ANY = HttpAddress("127.0.0.1", 0)
SAMPLES = ((0, APPLES), (1, PEARS), (EVAL + 4, APPLES))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, a third within a sweep, one that failed before its first step, and a damaged one."""
    place = tmp_path_factory.mktemp("several") / "runs"
    model = tmp_path_factory.mktemp("model")
    write_tokenizer(model)
    for number, (folder, name) in enumerate(((place, "plain"), (place, "fast"), (place / "sweep", "lr-1"))):
        rewards = tuple(0.1 * step + 0.05 * number for step in range(4))
        run = make(folder, name, rewards, start=NOW + 100 * number, model__path=str(model), trainer__lr=number + 1.0)
        rows = [(step, prompt, at, [40 + number, 50], 0.25 * number) for step, prompt in SAMPLES for at in (0, 1)]
        write_store(run, rows)
    (place / "broken").mkdir()
    (place / "broken" / "config.json").write_text("{")
    return place


@contextlib.asynccontextmanager
async def asking(place: Path, address: HttpAddress = ANY) -> Any:
    async with serving_several(place, address, live_of) as taken, ClientSession() as session:

        async def get(path: str, **more: Any) -> tuple[int, Any]:
            async with session.get(f"http://127.0.0.1:{taken.port}{path}", **more) as response:
                text = await response.text()
                return response.status, json.loads(text) if response.content_type.endswith("json") else text

        yield get


async def test_the_list_has_every_run_and_their_differences(place: Path) -> None:
    async with asking(place) as get:
        status, answer = await get("/api/runs")
        assert status == 200
        assert [run["id"] for run in answer["runs"]] == ["sweep~lr-1", "fast", "plain"]
        assert answer["runs"][2]["state"] == "stopped"
        assert answer["settings"] == [
            {"key": "trainer.lr", "values": {"fast": 2.0, "plain": 1.0, "sweep~lr-1": 3.0}},
        ]
        assert [Path(one["folder"]).name for one in answer["damaged"]] == ["broken"]
        late = make(place, "late", (0.5,))
        assert (await get("/api/curves?runs=late&metrics=reward/mean"))[0] == 200, "a run that came later is found"
        for file in late.iterdir():
            file.unlink()
        late.rmdir()


async def test_curves_and_prompts_of_the_chosen_runs(place: Path) -> None:
    async with asking(place) as get:
        _, answer = await get("/api/metrics?runs=plain,sweep~lr-1")
        assert {"reward/mean", "val/held/reward/mean"} <= set(answer["metrics"])
        _, answer = await get("/api/curves?runs=plain,sweep~lr-1&metrics=reward/mean,val/held/reward/mean")
        curve = answer["curves"]["reward/mean"]["sweep~lr-1"]
        assert curve["steps"] == [1, 2, 3, 4]
        assert curve["hours"] == pytest.approx([10 / 3600 * step for step in (1, 2, 3, 4)])
        assert curve["values"] == pytest.approx([0.1, 0.2, 0.3, 0.4])
        assert answer["curves"]["val/held/reward/mean"]["plain"]["steps"] == [4]
        _, answer = await get("/api/prompts?runs=plain,fast&query=apples")
        assert [(one["id"], one["rewards"]) for one in answer["prompts"]] == [(APPLES, {"plain": 0.0, "fast": 0.25})]
        _, answer = await get(f"/api/prompts/{APPLES}?runs=plain,fast")
        assert answer["runs"]["fast"]["epochs"][0]["samples"][0]["text"] == "HQ"
        assert (await get("/api/prompts/00000000000000ff?runs=plain"))[1]["runs"]["plain"]["error"]
        assert (await get("/api/curves?runs=plain"))[0] == 400
        assert (await get("/api/curves?runs=none&metrics=x"))[0] == 404


async def test_every_run_has_its_own_page_below(place: Path) -> None:
    async with asking(place) as get:
        assert (await get("/run/plain/api/run"))[1]["name"] == "plain"
        assert (await get("/run/sweep~lr-1/api/steps"))[1]["steps"][0]["step"] == 0
        assert "views/main.js" in (await get("/run/plain"))[1]
        assert (await get("/run/plain/static/views/main.js"))[0] == 200
        assert (await get("/run/none/api/run"))[0] == 404
        assert (await get("/run/%2e%2e/api/run"))[0] == 404
        assert (await get("/api/runs", headers={"Host": "evil.example"}))[0] == 403


def test_ids_of_different_names_differ_and_have_no_separator() -> None:
    names = ["a/b", "a~b", "a,b", "a!b", "a!7Eb", "a!2Cb", "a!21b", "a/~b", "a~/b", "a", "b"]
    ids = [id_of(name) for name in names]
    assert len(set(ids)) == len(names)
    assert not set("".join(ids)) & set("/,")
    assert id_of("sweep/lr-1") == "sweep~lr-1"


async def test_names_with_separators_are_runs_of_their_own(tmp_path: Path) -> None:
    """`run.name` has no such characters, but a folder can be renamed."""
    make(tmp_path / "sweep", "lr-1", (0.1,))
    make(tmp_path, "one", (0.2,)).rename(tmp_path / "sweep~lr-1")
    make(tmp_path, "two", (0.3,)).rename(tmp_path / "lr=1,seed=2")
    async with asking(tmp_path) as get:
        ids = {run["name"]: run["id"] for run in (await get("/api/runs"))[1]["runs"]}
        _, answer = await get(f"/api/curves?metrics=reward/mean&runs={','.join(ids.values())}")
        values = {name: answer["curves"]["reward/mean"][id]["values"] for name, id in ids.items()}
        assert values == {"sweep/lr-1": [0.1], "sweep~lr-1": [0.2], "lr=1,seed=2": [0.3]}
        assert (await get(f"/run/{ids['lr=1,seed=2']}/api/run"))[1]["name"] == "two"


async def test_pages_that_are_opened_at_the_same_time_all_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "MOST_OPEN", 1)
    for name in ("a", "b", "c"):
        make(tmp_path, name, (0.1,))
    pages = registry.Registry(tmp_path, live_of, AccessControl())
    found = await asyncio.gather(*(pages.page(id) for id in ("a", "b", "c")))
    assert len({id(page) for page in found}) == 3
    await pages.close()


async def test_other_addresses_require_the_token_of_the_folder(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RHYMED_HTTP_TOKEN", "t" * 30)
    async with asking(place, HttpAddress("0.0.0.0", 0)) as get:
        assert (await get("/run/plain/api/run"))[0] == 401
        assert (await get("/api/runs"))[0] == 401
        assert (await get("/run/plain/api/run", headers={"Authorization": f"Bearer {'t' * 30}"}))[0] == 200


def test_a_long_curve_keeps_its_newest_point() -> None:
    rows = [{"step": step, "timing_s/step": 3.6, "x": float(step)} for step in range(4_500)]
    found = curves.curve(Files(rows, [], Progress()), "x")
    assert len(found["steps"]) == 1_500
    assert (found["steps"][-1], found["values"][-1]) == (4_500, 4_499.0)
    assert found["hours"][-1] == pytest.approx(4.5)
    assert curves.curve(Files([], [], Progress()), "x")["steps"] == []


@pytest.fixture(scope="module")
def page(place: Path) -> Iterator[Any]:
    path = find()
    if path is None:
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium)")
    loop, stack = Loop(), contextlib.AsyncExitStack()
    address = loop.run(stack.enter_async_context(serving_several(place, ANY, live_of)))
    browser = Browser(path, loop)
    page = browser.open(f"http://127.0.0.1:{address.port}/")
    page.wait("document.querySelectorAll('#runs tbody tr').length", 3)
    yield page
    assert page.problems == []
    browser.close()
    loop.run(stack.aclose())
    loop.close()


def test_the_page_overlays_the_curves_of_the_chosen_runs(page: Any) -> None:
    page.wait("document.querySelectorAll('#panel-curves .uplot').length >= 4")
    assert page.read("document.getElementById('metric').value") == "val/held/reward/mean"
    keys = "[...document.querySelectorAll('[data-chart=\"reward/mean\"] .key span')].map(e => e.textContent)"
    page.wait(f"{keys}.join()", "sweep/lr-1,fast,plain")
    page.click("[data-run=fast] input")
    page.wait(f"{keys}.join()", "sweep/lr-1,plain")
    page.read(
        "(e => { e.value = 'reward/mean'; e.dispatchEvent(new Event('change')) })(document.getElementById('metric'))"
    )
    page.wait("document.querySelector('.large h3').textContent", "reward/mean")
    assert "runs=sweep%7Elr-1%2Cplain" in page.read("location.hash")
    assert "broken is damaged" in page.text("#notice")


def test_the_page_shows_differences_and_samples_side_by_side(page: Any) -> None:
    page.read("document.getElementById('tab-curves').focus()")
    page.key("ArrowRight")
    page.wait("document.querySelector('.differences tbody')?.textContent", "trainer.lr31")
    page.click("#tab-samples")
    cards = "[...document.querySelectorAll('.matrix .card-text')].map(e => e.textContent).join()"
    page.wait(cards, "IQ,GQ,IQ,GQ")
    page.click(f"[data-prompt='{PEARS}']")
    page.wait("document.querySelector('#panel-samples h2 code').textContent", PEARS)
    link = page.read("document.querySelector('.card-link').getAttribute('href')")
    assert link == f"run/sweep~lr-1/#samples/{PEARS}/1/0"
    page.size(420, 900)
    assert page.read("document.documentElement.scrollWidth") == 420
    page.read("document.getElementById('skip').click()")
    assert page.read("document.activeElement.id") == "panels"
    page.click("[data-run=plain] a")
    page.wait("document.querySelector('#head h1')?.textContent", "plain")
