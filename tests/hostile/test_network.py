"""Two hosts on one machine: what is sent arrives, unless the cable is cut or loses it."""

import subprocess
import sys

import pytest

from tests.hostile.network import FAR, NEAR, Cable, missing_tools

pytestmark = pytest.mark.skipif(bool(missing_tools()), reason=f"no hosts here: {missing_tools()}")

ECHO = (
    f"import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('{NEAR}', 7)); print(flush=True)\n"
)
ECHO += "while True: s.sendto(*s.recvfrom(100))"
ASK = f"""
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(float(sys.argv[2]))
heard = 0
for _ in range(int(sys.argv[1])):
    try:
        s.sendto(b'x', ('{NEAR}', 7))
        heard += s.recv(10) == b'x'
    except OSError:
        pass
print(heard)
"""


def heard(cable: Cable, count: int, wait_s: float = 20.0) -> int:
    """Answers to so many questions from the second host, each of which comes within `wait_s`, or never."""
    command = [*cable.far, sys.executable, "-c", ASK, str(count), str(wait_s)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def identity(prefix: list[str]) -> str:
    command = [*prefix, sys.executable, "-c", "from rhymed.core.service.host import host_id; print(host_id())"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_cable_carries_is_cut_and_loses() -> None:
    with Cable() as cable:
        with subprocess.Popen([*cable.near, sys.executable, "-c", ECHO], stdout=subprocess.PIPE) as echo:
            assert echo.stdout is not None
            echo.stdout.readline()
            try:
                assert heard(cable, 3) == 3
                cable.cut()
                assert heard(cable, 2, 0.5) == 0
                cable.repair()
                assert heard(cable, 3) > 0
                cable.lose(90)
                assert heard(cable, 8, 0.5) < 8
                cable.repair()
                assert heard(cable, 3) == 3
            finally:
                echo.kill()
        assert identity(cable.near) != identity(cable.far)
        names = cable._names
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert not any(name in left for name in names)
    assert FAR != NEAR
