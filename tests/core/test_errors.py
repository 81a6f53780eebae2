import pickle
import re
from pathlib import Path

import pytest

from rhymed.core import errors

ROOT = Path(__file__).resolve().parents[2]


def test_errors_are_defined_in_one_module() -> None:
    """Otherwise `by_name` does not find them."""
    code = [path for top in ("rhymed", "store", "broker", "workers") for path in (ROOT / top).rglob("*.py")]
    names = "|".join(kind.__name__ for kind in leaves(errors.RhymedError))
    pattern = re.compile(rf"^class \w+\((errors\.)?({names})\)", re.MULTILINE)
    assert [path for path in code if pattern.search(path.read_text())] == [ROOT / "rhymed" / "core" / "errors.py"]


def leaves(kind: type[errors.RhymedError]) -> list[type[errors.RhymedError]]:
    return [kind, *(leaf for child in kind.__subclasses__() for leaf in leaves(child))]


@pytest.mark.parametrize("kind", leaves(errors.RhymedError))
def test_every_error_survives_pickling_and_is_found_by_its_name(kind: type[errors.RhymedError]) -> None:
    copy = pickle.loads(pickle.dumps(kind("what happened")))
    assert type(copy) is kind
    assert str(copy) == "what happened"
    assert errors.by_name(kind.__name__) is kind


@pytest.mark.parametrize("name", ["NoSuchError", "annotations", "Exception", "by_name", ""])
def test_a_name_of_another_version_is_a_remote_failure(name: str) -> None:
    assert errors.by_name(name) is errors.RemoteFailure


def test_the_tree_at_the_top_of_the_module_is_the_tree() -> None:
    for kind in leaves(errors.RhymedError):
        assert f" {kind.__name__} " in f" {str(errors.__doc__).replace(chr(10), ' ')} "
