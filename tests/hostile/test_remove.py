"""Files and folders of a living run are removed: it heals, or ends with a sentence. The whole walk: stress-remove."""

from __future__ import annotations

import pytest

from tests.hostile import remove


@pytest.mark.thorough
@pytest.mark.timeout(2400)
def test_a_run_heals_or_says_why_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RHYMED_NET__HTTP")  # the runs have dashboards, whose token is one of the places
    found = remove.run(quick=True)
    assert found["good"], found
    healed = {place["place"]: place["healed"] for place in found["places"]}
    ends = {"store", ".", "keys/public"}
    assert healed == {place: place not in ends for place in [*remove.QUICK, *remove.QUICK_LOCKED]}
