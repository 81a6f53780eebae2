"""The example notebook, executed cell by cell in a Jupyter kernel; the run in it has no model."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.system.commands import NO_MODEL, ROOT, SMALL

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def test_the_example_notebook_trains_and_shows_tables(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("pandas")
    notebook = nbformat.read(ROOT / "examples/notebook/train.ipynb", as_version=4)
    (cell,) = [cell for cell in notebook.cells if "SmolLM2" in cell.source]
    settings = {**SMALL, **NO_MODEL, "RHYMED_NET__HTTP": ""}
    cell.source = cell.source.replace("SmolLM2-135M-Instruct", str(tiny_model))
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    (history,) = [cell for cell in notebook.cells if "run.history" in cell.source]
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    lines = "".join(output.text for output in cell.outputs if output.output_type == "stream").splitlines()
    assert [line for line in lines if line.startswith("step ")], "the heading of the steps"
    assert [line for line in lines if line.startswith("finished")]
    assert (tmp_path / "runs/notebook/summary.json").is_file()
    assert "reward" in history.outputs[-1]["data"]["text/html"]
