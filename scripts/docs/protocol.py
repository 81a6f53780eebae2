"""`python -m scripts.docs.protocol` writes docs/protocol.md from the sources of rhymed.messages.

The page cannot lie about a field: names, types, defaults and the comments beside them are read from the source, and
its example is run by the tests. Only the introduction is written here.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from rhymed.messages import PROTOCOL, base, broker, orders, queues, samples, store, weights

SECTIONS = (base, samples, broker, queues, orders, store, weights)

INTRODUCTION = """\
# The protocol

<!-- Written by `python -m scripts.docs.protocol` from rhymed/messages/. Change that, not this. -->

Broker, store and trainer bind a ZeroMQ ROUTER each; everybody else connects a DEALER. On an open link either side
may ask. This is version {version}; `Join` tells it, and a peer of another version is turned away.

## Framing

A message is a multipart message of two or more frames:

| frame | content |
|---|---|
| envelope | MessagePack map: `kind`, `id`, `deadline_s` |
| body | MessagePack map; `type` names the message, the other keys are its fields |
| arrays | raw little-endian numbers, as the message says: tokens uint32, log-probs float32 |

* Maps, not positions: the order of keys means nothing. A key that the receiver does not know is refused, as is a
  missing one without a default. A field that has its default value may be left out, and the services do so.
* A tuple is a MessagePack array. `None` is nil.
* The arrays of several samples lie end to end in one frame, in the order of the body's list; the lengths in the body
  cut them apart.
* Nothing is ever unpickled. A frame of an answer may have up to {max_mib} MiB; what servers take is in
  [security.md](security.md).

## Requests, deadlines, errors

Every request has a deadline, and gets at most one reply with the same `id`: what the message's text says, `done`, or
`failure` with the name of an error in `rhymed.errors` and a sentence for people. Whoever asks waits `deadline_s` and
no longer; a later reply is ignored. A request whose reply did not come may be sent again. An event (`id` 0) gets no
reply.

A message that is not known here, or does not have its fields, is answered with `MalformedMessage`. A frame that
is no envelope is logged and ignored. A worker that the broker does not know (any more) is answered with `PeerGone`:
it joins and goes on.

## Addresses

`net.broker`, `net.store` and `net.weights` of the configuration; where they are empty, ipc sockets that
`rhymed.run.layout.layout_of(config)` computes from the run's folder. A worker's routing id is its name.

## A client without rhymed

Plain pyzmq and msgpack; prints the depth of every queue of a run:

```python
{example}```
"""

EXAMPLE = """\
import sys

import msgpack
import zmq


def ask(address, body, deadline_s=5.0):
    socket = zmq.Context.instance().socket(zmq.DEALER)
    socket.connect(address)
    try:
        envelope = {"kind": "request", "id": 1, "deadline_s": deadline_s}
        socket.send_multipart([msgpack.packb(envelope), msgpack.packb(body)])
        if not socket.poll(1000 * deadline_s):
            raise TimeoutError(f"{address} did not answer within {deadline_s} s")
        envelope, answer, *arrays = socket.recv_multipart()
    finally:
        socket.close(linger=0)
    answer = msgpack.unpackb(answer)
    if answer["type"] == "failure":
        raise RuntimeError(f"{answer['error']}: {answer['message']}")
    return answer


answer = ask(sys.argv[1], {"type": "get_queues"})
for name, depth in sorted(answer["queues"].items()):
    print(name, depth)
"""

MAX_MIB = 1024


def render() -> str:
    """The whole page: a section for each module, under the first line of its text."""
    sources = [inspect.getsource(module) for module in SECTIONS]
    parts = [INTRODUCTION.format(version=PROTOCOL, max_mib=MAX_MIB, example=EXAMPLE), "\n## Words\n\n"]
    parts += [word for source in sources for word in _words(source)]
    for module, source in zip(SECTIONS, sources, strict=True):
        parts.append(f"\n## {(module.__doc__ or '').splitlines()[0].rstrip('.')}\n")
        comments = _comments(source)
        structs = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
        parts += [_entry(node, comments) for node in structs if node.name not in ("Message", "Part")]
    return "".join(parts).rstrip() + "\n"


def _words(source: str) -> Iterator[str]:
    """The closed sets of words that several fields share."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
            words = ast.literal_eval(node.value.slice)
            yield f"* `{ast.unparse(node.targets[0])}`: {', '.join(f'`{word}`' for word in words)}\n"


def _entry(node: ast.ClassDef, comments: dict[int, str]) -> str:
    tag = next((ast.literal_eval(one.value) for one in node.keywords if one.arg == "tag"), "")
    title = f"{node.name}: `{tag}`" if tag else node.name
    text = re.sub(r"\n +", "\n", ast.get_docstring(node) or "")
    fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
    lines = [f"\n### {title}\n"]
    if text:
        lines.append(f"\n{text}\n")
    if fields:
        lines.append("\n| field | type | default | |\n|---|---|---|---|\n")
    for field in fields:
        kind = ast.unparse(field.annotation).replace("|", "\\|")
        default = f"`{ast.unparse(field.value)}`" if field.value is not None else ""
        comment = comments.get(field.lineno, "").replace("|", "\\|")
        lines.append(f"| `{ast.unparse(field.target)}` | `{kind}` | {default} | {comment} |\n")
    return "".join(lines)


def _comments(source: str) -> dict[int, str]:
    """Line -> the comment on it."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}


def path() -> Path:
    return Path(__file__).parents[2] / "docs" / "protocol.md"


if __name__ == "__main__":
    path().write_text(render())
    print(f"written: {path()}", file=sys.stderr)
