"""Keyed sampling for an engine without drafts: `worker_extension_cls="rhymed.histospec.extension.Extension"`.

vLLM imports this module in every worker process before it makes the worker.
"""

from __future__ import annotations

from rhymed.histospec.plugin import install


class Extension:
    """Mixed into vLLM's worker class; what it does is done by importing this module."""


install(keyed=True)
