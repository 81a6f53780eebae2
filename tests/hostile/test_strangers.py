"""A short siege of the dashboard's real process."""

import pytest

from tests.hostile import strangers


@pytest.mark.thorough
def test_the_owner_is_answered_while_strangers_hold_and_flood() -> None:
    found = strangers.run(quick=True)
    assert not [name for name, value in found.items() if name.endswith("failed") and value]
    assert all(value <= strangers.LOG_KIB_PER_S * 10 for name, value in found.items() if "log_kib" in name)
    assert all(found[f"{mode}/{name}/asked"] for mode in ("open", "token") for name in strangers.ATTACKS)
