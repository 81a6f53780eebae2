import asyncio
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rhymed.core import messages
from rhymed.core.messages import GetQueues, Message, Queues, ToBroker
from rhymed.core.wire.sockets import Server
from scripts.docs import protocol


def test_the_page_is_up_to_date() -> None:
    assert protocol.path().read_text() == protocol.render(), "write it again: python -m scripts.docs.protocol"


def test_every_message_is_on_it_with_all_of_its_fields() -> None:
    page = protocol.render()
    for name, kind in vars(messages).items():
        if isinstance(kind, type) and issubclass(kind, messages.Message | messages.Part):
            if name in ("Message", "Part"):
                continue
            entry = re.search(rf"^### {name}(: `\w+`)?$(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL)
            assert entry, name
            assert re.findall(r"^\| `(\w+)`", entry[2], re.MULTILINE) == list(kind.__struct_fields__)


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """The client of the page, taken out of the page."""
    code = re.search(r"```python\n(.*?)```", protocol.path().read_text(), re.DOTALL)
    assert code
    (tmp_path / "client.py").write_text(code[1])
    return tmp_path / "client.py"


async def test_the_plain_client_of_the_page_works(example: Path, tmp_path: Path) -> None:
    async def answer(peer: bytes, message: Any, frames: Sequence[bytes]) -> Message:
        assert message == GetQueues()
        return Queues(
            run="run",
            uptime_s=1,
            version=2,
            step=2,
            steps=9,
            finished=False,
            queues={"waiting": 3, "running": 64},
            oldest_s={},
            workers=[],
            open_steps=[],
        )

    server = Server(f"ipc://{tmp_path}/broker", ToBroker, answer)
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(example), server.address, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        output, _ = await process.communicate()
    server.close()
    assert (process.returncode, output.decode()) == (0, "running 64\nwaiting 3\n")
