"""Every path that a run makes outside its folder, seen by a hook in each of its processes.

A new one belongs into docs/security.md, and its name is random, or goes through `rhymed.core.private`.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stress.run import LiveRun
from tests.system.turns import write

TOOL = '''
def look(key: str) -> str:
    """Looks.

    Args:
        key: Any.
    """
    return key
'''

HOOK = """
import os, sys

def look(event, given):
    if event == "open" and isinstance(given[0], (str, bytes)) and given[2] & os.O_CREAT:
        path = given[0]
    elif event in ("os.mkdir", "os.symlink", "os.link", "os.rename"):
        path = given[0 if event == "os.mkdir" else 1]
    elif event == "socket.bind" and isinstance(given[1], (str, bytes)):
        path = given[1]
    else:
        return
    seen = os.open(SEEN, os.O_WRONLY | os.O_APPEND)  # each time: the jail of a tool closes what is open
    os.write(seen, (os.path.abspath(os.fsdecode(path)) + "\\n").encode())
    os.close(seen)

SEEN = os.environ["SEEN"]
sys.addaudithook(look)
"""

OUTSIDE = {
    r"TMP/rhymed-HEX": "sockets: `private.trouble`, `addresses.check_owner`",
    r"SHM/rhymed-HEX-RANDOM(/\.?version-.*)?": "published weights: mkdtemp",
    r"SHM/rhymed-weights-UID-HEX(/.*)?": "copies of weights: `private.folder`",
    r"TMP/RANDOM": "whether Python may write there",
    r"/sys/fs/cgroup/.*/rhymed-score-[0-9]+(/.*)?": "of scoring processes: only root and we make them",
    r"RUNS": "the folder of runs, which the user names",
    r"RUNS/(latest|\.latest.*)": "a link to the newest run",
}
"""What a run may make outside its folder, and why nobody can have made it first."""


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder in which a socket's path has room."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def pattern(text: str) -> str:
    for word, meaning in {"HEX": "[0-9a-f]{12}", "UID": str(os.geteuid()), "RANDOM": "[a-z0-9_]{8}"}.items():
        text = text.replace(word, meaning)
    return text


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_a_run_makes_outside_its_folder_is_listed(tmp_path: Path, short: Path) -> None:
    places = {name: short / name.lower() for name in ("TMP", "SHM", "HOOK", "HOME")}
    for place in places.values():
        place.mkdir()
    (places["HOOK"] / "sitecustomize.py").write_text(HOOK)
    seen = tmp_path / "seen"
    seen.touch()
    (tmp_path / "tools.py").write_text(TOOL)
    file = write(
        tmp_path,
        "outside",
        3,
        rollout={"engine": "trace"},
        trace={"tools": ["look"], "mean_length": 15, "step_s": 0.002, "token_s": 0.0001},
        trainer={"engine": "trace", "checkpoint_every": 1},
        environment={"tools": f"{tmp_path / 'tools.py'}:look", "processes": 1},
    )
    environment = {
        "TMPDIR": str(places["TMP"]),
        "RHYMED_SHARED_MEMORY": str(places["SHM"]),
        "HOME": str(places["HOME"]),
        "SEEN": str(seen),
        "PYTHONPATH": os.pathsep.join([str(places["HOOK"]), os.environ.get("PYTHONPATH", "")]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with LiveRun(file, prefix=["env", *(f"{name}={value}" for name, value in environment.items())]) as run:
        assert run.wait(250) == 0, run.tail(20)
    folder = str(run.where.folder)
    named = {str(place): name for name, place in places.items()} | {str(run.where.folder.parent): "RUNS"}
    outside = set[str]()
    for path in seen.read_text().splitlines():
        if not path.startswith(f"{folder}/") and path != folder and not path.startswith(("/dev/null", "/proc/")):
            for place, name in named.items():
                path = path.replace(place, name)
            outside.add(path)
    odd = {path for path in outside if not any(re.fullmatch(pattern(known), path) for known in OUTSIDE)}
    assert not odd, "list them"
    for place in ("TMP/rhymed", "SHM/rhymed"):
        assert any(path.startswith(place) for path in outside), "the hook sees what is made"
    assert list(places["TMP"].iterdir()) == list(places["SHM"].iterdir()) == [], "nothing is left"
