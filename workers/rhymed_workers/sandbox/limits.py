"""The sandbox `rlimits`: `python -I -m rhymed_workers.sandbox.limits PARENT`, then the driver reads stdin.

Drops all privileges and ends with the process PARENT. Time, memory and sizes are limited by the driver; network and
files stay open.
"""

from __future__ import annotations

import resource
import signal
import sys

from rhymed_workers.sandbox import driver, linux


def main() -> None:
    linux.die_with_parent(signal.SIGKILL, int(sys.argv[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    linux.drop_privileges()
    driver.main()


if __name__ == "__main__":
    main()
