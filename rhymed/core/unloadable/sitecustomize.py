"""Python imports this before a program, wherever its folder is on PYTHONPATH (see `rhymed.core.unloadable`): hides
packages that would not load, then runs the machine's own `sitecustomize`, which this one replaces."""

import sys
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

with suppress(Exception):  # a Python in which rhymed is not installed, or whose packages' records are damaged
    from rhymed.core.unloadable import hide_here

    hide_here()

_here = Path(__file__).parent
_next = PathFinder.find_spec(__name__, [folder for folder in sys.path if Path(folder) != _here])
if _next is not None and _next.loader is not None:
    _module = sys.modules[__name__] = module_from_spec(_next)
    _next.loader.exec_module(_module)
