"""A run that Ray has placed, and that loses machines, trains what the same run trains in peace."""

from pathlib import Path

import pytest

from tests.packages import needs

pytestmark = [needs("ray"), pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(900)]

KINDS = ("rollout machine", "trainer machine", "Ray's head")


def test_whatever_machine_is_lost_every_sample_is_trained_once_and_the_weights_are_the_same(tmp_path: Path) -> None:
    from tests.stress import machines as stress

    found = stress.run(True, machines=3, every=2, kinds=KINDS, out=tmp_path)
    assert found["wrong"] == [], found
    assert tuple(found["losses"]) == KINDS
    assert "the same, bit for bit" in found["audit"]
