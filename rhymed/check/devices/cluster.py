"""What a run asks of the machines of a Ray cluster, and whether they have it."""

from __future__ import annotations

from rhymed.check.report import Section
from rhymed.config import Config
from rhymed.errors import ConfigError
from rhymed.placement.plan import seats
from rhymed.placement.ray.cluster import addressed, reach
from rhymed.placement.ray.room import needs, problems


def describe(config: Config) -> Section:
    """Asks Ray, which takes seconds."""
    section = Section("machines, by Ray")
    try:
        ready = reach(config)
        section.errors += problems(config, ready.nodes)
        addressed(config, ready.host)
    except ConfigError as error:
        section.errors += str(error).splitlines()
        return section
    section.add("Ray", f"head {ready.head}, this machine is {ready.host}")
    for node in ready.nodes:
        gpus = f", {node.gpus:g} GPUs" if node.gpus else ""
        section.add(f"  {node.host}", f"{node.cpus:g} CPUs{gpus}, {node.memory_gib:.0f} GiB")
    for seat in seats(config, gpus=any(node.gpus for node in ready.nodes)):
        where = "beside `rhymed run`" if seat.kind == "pinned" else f"{needs(seat)} each"
        section.add(seat.name, f"{seat.count}, {where}")
    return section
