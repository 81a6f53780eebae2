"""Keyed sampling for an engine without drafts: `worker_extension_cls="rhymed.histospec.extension.Extension"`.

vLLM imports this module in every worker process before it creates the worker.
"""

from __future__ import annotations

from rhymed.histospec.plugin import install


class Extension:
    """Mixed into vLLM's worker class. It is empty: importing this module does the work."""


install(keyed=True)
