"""Keyed sampling for an engine without drafts: `worker_extension_cls="rhymed.histospec.extension.Extension"`.

vLLM imports this module in every worker process before it creates the worker. An engine that cannot sample with keys
does not start; `additional_config={"rhymed": {"keyed": false}}` switches keyed sampling off.
"""

from __future__ import annotations

from rhymed.histospec.plugin import install, require


class Extension:
    """Mixed into vLLM's worker class. It is empty: importing this module does the work."""


install(keyed=True)
require()
