"""HTTP routes of the dashboard of several runs; docs/http.md has their answers. Run pages are below /run/<id>/."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from rhymed.dashboard import files
from rhymed.dashboard.auth import AccessControl
from rhymed.dashboard.data.source import Source, encode
from rhymed.dashboard.data.thread import SourceThread
from rhymed.dashboard.middleware import edge
from rhymed.dashboard.routes import App
from rhymed.dashboard.several import curves
from rhymed.dashboard.several.registry import LiveOf, Registry, id_of
from rhymed.dashboard.snapshots import LiveRun, never
from rhymed.errors import MalformedMessage, RhymedError
from rhymed.several.differences import differences
from rhymed.several.find import config_of
from rhymed.several.listing import Listing

MOST_RUNS = 8  # in one chart: there are no more colours
MOST_METRICS = 16
MOST_PROMPTS = 500  # of each run, in the order of their ids

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class SeveralApp:
    """`application` is what aiohttp runs."""

    def __init__(self, place: Path, live_of: LiveOf, access: AccessControl) -> None:
        self._registry = Registry(place, live_of, access)
        self.application = web.Application(middlewares=[edge(access)])
        self.application.on_cleanup.append(self._close)
        get = self.application.router.add_get
        get("/", _index)
        get("/static/{path:.+}", _file)
        get("/health", _health)
        get("/api/runs", self._runs)
        get("/api/metrics", self._metrics)
        get("/api/curves", self._curves)
        get("/api/prompts", self._prompts)
        get("/api/prompts/{prompt}", self._prompt)
        get("/run/{run}", _slash)
        template = App(SourceThread(Source(place)), LiveRun(never), access)  # for its paths; it is never asked
        for path in template.handlers:
            get(f"/run/{{run}}{path}", self._of_run(path), allow_head=False)

    def _of_run(self, path: str) -> Handler:
        """Answers as the dashboard of that run alone does."""

        async def handle(request: web.Request) -> web.StreamResponse:
            page = await self._registry.page(request.match_info["run"])
            return await page.app.handlers[path](request)

        return handle

    async def _runs(self, request: web.Request) -> web.Response:
        listing = await self._registry.listing()
        return _answer(await asyncio.to_thread(_listed, listing))

    async def _metrics(self, request: web.Request) -> web.Response:
        found = await self._registry.files(_chosen(request))
        return _answer({"metrics": curves.names(list(found.values()))})

    async def _curves(self, request: web.Request) -> web.Response:
        metrics = _words(request, "metrics", MOST_METRICS)
        found = await self._registry.files(_chosen(request))
        return _answer({"curves": await asyncio.to_thread(curves.curves, found, metrics)})

    async def _prompts(self, request: web.Request) -> web.Response:
        query = request.query.get("query", "")
        answers = await self._each(request, lambda source: source.prompts(query, "id", 0, MOST_PROMPTS))
        return _answer(_merged(answers))

    async def _prompt(self, request: web.Request) -> web.Response:
        prompt = request.match_info["prompt"]
        return _answer({"id": prompt, "runs": await self._each(request, lambda source: source.prompt(prompt))})

    async def _each(self, request: web.Request, work: Callable[[Source], Any]) -> dict[str, Any]:
        """Run -> its answer, or {"error": a sentence}."""
        ids = _chosen(request)
        pages = [await self._registry.page(id) for id in ids]

        async def ask(thread: SourceThread) -> Any:
            try:
                return await thread.run(work, thread.source)
            except RhymedError as error:
                return {"error": str(error)}

        return dict(zip(ids, await asyncio.gather(*(ask(page.thread) for page in pages)), strict=True))

    async def _close(self, application: web.Application) -> None:
        await self._registry.close()


def _listed(listing: Listing) -> dict[str, Any]:
    """The list, and the settings in which the runs that have begun differ. Blocking."""
    rows = [{**row.json(), "id": id_of(row.name)} for row in listing.runs]
    configs: dict[str, Any] = {}
    for row in rows:
        try:
            if (config := config_of(Path(row["folder"]))) is not None:
                configs[row["id"]] = config
        except (OSError, ValueError):
            continue  # it is named as damaged
    found = differences(list(configs.values())) if len(configs) > 1 else {}
    return {
        **listing.json(),
        "name": listing.folder.resolve().name,
        "runs": rows,
        "settings": [{"key": key, "values": dict(zip(configs, each, strict=True))} for key, each in found.items()],
    }


def _merged(answers: dict[str, Any]) -> dict[str, Any]:
    """Prompts that most of the runs have come first; otherwise by id."""
    prompts: dict[str, dict[str, Any]] = {}
    for run, answer in answers.items():
        for row in answer.get("prompts", ()):
            prompt = prompts.setdefault(row["id"], {"id": row["id"], "text": row["text"], "rewards": {}})
            prompt["rewards"][run] = row["reward"]
    ordered = sorted(prompts.values(), key=lambda one: (-len(one["rewards"]), one["id"]))
    errors = {run: answer["error"] for run, answer in answers.items() if "error" in answer}
    return {"total": len(ordered), "prompts": ordered[:MOST_PROMPTS], "errors": errors}


def _chosen(request: web.Request) -> list[str]:
    return _words(request, "runs", MOST_RUNS)


def _words(request: web.Request, name: str, most: int) -> list[str]:
    words = [word for word in request.query.get(name, "").split(",") if word]
    if not 0 < len(words) <= most:
        raise MalformedMessage(f"{name}: 1 to {most} names with commas between them are expected")
    return list(dict.fromkeys(words))


def _answer(answer: Any) -> web.Response:
    return web.Response(body=encode(answer), content_type="application/json")


async def _index(request: web.Request) -> web.StreamResponse:
    return files.page(files.SEVERAL_RUNS)


async def _file(request: web.Request) -> web.StreamResponse:
    return await files.send(request.match_info["path"])


async def _slash(request: web.Request) -> web.StreamResponse:
    """The page's own addresses are relative, so they need the slash."""
    return web.Response(status=308, headers={"Location": f"{request.rel_url.raw_name}/"})


async def _health(request: web.Request) -> web.Response:
    return web.Response(text="ok")
