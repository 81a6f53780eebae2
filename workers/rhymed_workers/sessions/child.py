"""In the jail (rhymed_workers.sandbox.jail): becomes a user's program.

The first frame on its input says which. The program's output goes to the pipe over which scorers answer. Starts with
the standard library alone.
"""

from __future__ import annotations

import json
import os
import resource
import sys

from rhymed_workers.sandbox.frames import get, limit


def main() -> None:
    with os.fdopen(os.dup(0), "rb") as requests:
        order = json.loads(get(requests) or b"{}")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(1, 2)
    limit(resource.RLIMIT_DATA, order["memory_bytes"])
    limit(resource.RLIMIT_FSIZE, order["file_bytes"])
    limit(resource.RLIMIT_NOFILE, order["open_files"])
    try:
        os.execvpe(order["command"][0], order["command"], order["environment"])
    except OSError as error:
        sys.stderr.write(f"{order['command'][0]} cannot be started: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(127)
