"""Whether results that are continued were measured on this machine, with these versions. Pure."""

from __future__ import annotations

from collections.abc import Mapping


def other_machine(there: Mapping[str, str], here: Mapping[str, str]) -> str:
    """In which facts of `machine` two differ; empty: in none. A newer kernel is the same machine."""
    names = [name for name in {**there, **here} if name != "system" and there.get(name) != here.get(name)]
    return "; ".join(f"{name} {there.get(name, 'none')}, here {here.get(name, 'none')}" for name in names)


def other_versions(there: Mapping[str, str], here: Mapping[str, str]) -> str:
    """Which versions differ; empty: none."""
    names = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    return ", ".join(f"{name} {there.get(name, 'missing')} (now {here.get(name, 'missing')})" for name in names)
