"""Secrets in texts and settings: one list, for logs, pages, reports, sinks and audits. Pure.

Known by the name before it (`api_key=…`, `Authorization: …`, a setting called `token`), by its form (`hf_…`), or by
its place in an address (`://me:password@`). One rule, `is_secret`, says which names are those of secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

HIDDEN = "***"
KEY = re.compile(
    r"(?i)(?:token|authorization|connection[_-]?string|(?:^|[_-])(?:auth|cookies?)|[_-]pwd"
    r"|(?:secret|password|passwd|passphrase|credential"
    r"|(?:api|access|private|secret|account|signing|encryption|master)[_-]?key)s?)$"
)
"""The end of the name of a setting, a header or a variable whose value is secret."""
VOCABULARY = re.compile(
    r"(?i)(?:^|[_-])(?:max|min|num|new|per|each|first|last|next|stop|start|end|eos|bos|pad|unk|sep|cls|mask|special|think"
    r"|image|audio|video)[_-]token$"
)
"""Names of tokens of a vocabulary, and of numbers of them."""
HEADER = re.compile(r"(?i)(?:authorization|cookie|[_-]key|-token|password|passwd)$")
"""Names before which no quotes, and after which a colon, are enough: other names occur so in sentences."""
SCHEME = r"(?:(?:bearer|basic|token|digest)\s+)?"
PAIR = re.compile(
    r"(?i)(?<![\w-])(?P<option>--)?(?P<name>[\w-]++)"
    r"(?P<between>(?P<open>\\*[\"'])?\s*[:=]\s*|(?(option)\s+|(?!)))"
    rf"(?P<quote>\\*[\"'])?(?P<scheme>{SCHEME})"
)
"""A name, and the place where its value begins."""
PLAIN = re.compile(r"[^\s&\"'<>#\\]+")  # a value without quotes
COOKIES = re.compile(r"[^\r\n\"'<>\\]+")
FORM = r"(?=[a-z_-]{0,64}[A-Z0-9])[A-Za-z0-9_-]{8,}"  # words of a name, such as hf_hub_download, are small
FORMS = (
    re.compile(r"(?i)(\bbearer\s+)[^\s&\"'<>]+"),
    re.compile(r"([?&](?i:[a-z_-]*(?:key|sig|signature))=)[^\s&\"'<>#]+"),
    re.compile(r"\b(hf_)(?=[a-z]{0,64}[A-Z0-9])[A-Za-z0-9]{8,}(?![A-Za-z0-9_])"),
    re.compile(rf"\b(sk-|sk_live_|wandb_v1_|gh[opsur]_|github_pat_|glpat-|xox[a-z]-|pypi-|AIza){FORM}"),
    re.compile(r"(?<![\w-])(eyJ)[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+"),  # a JSON web token
    re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----)[^-]+"),
    re.compile(r"(://)[^/?#\s\"'<>]+(?=@)"),
)
SHORTEST = 8  # characters of a variable's secret; shorter values occur in ordinary words


def is_secret(name: str) -> bool:
    """Whether the value of a setting, header or variable of this name is secret."""
    return bool(KEY.search(name)) and not VOCABULARY.search(name)


def of_environment(environ: Mapping[str, str]) -> list[str]:
    """Values of variables with names of secrets; the longest first."""
    values = {value for name, value in environ.items() if is_secret(name) and len(value) >= SHORTEST}
    return sorted(values, key=len, reverse=True)


def hide(text: str, secrets: list[str] | None = None) -> str:
    """The text without secrets. `secrets`: further values, hidden wherever they occur."""
    for secret in secrets or ():
        text = text.replace(secret, HIDDEN)
    text = "".join(_without_values(text))
    for pattern in FORMS:
        text = pattern.sub(lambda found: found[1] + HIDDEN, text)
    return text


def _without_values(text: str) -> Iterator[str]:
    """The text in pieces, with `HIDDEN` for each value that follows a secret's name."""
    place = 0
    for pair in PAIR.finditer(text):
        if pair.start() < place or not is_secret(pair["name"]) or not _gives_value(pair):
            continue
        quote = pair["quote"]
        value = COOKIES if pair["name"].lower().endswith(("cookie", "cookies")) else PLAIN
        end = _closing(text, pair.end(), quote) if quote else -1
        if end < 0:
            found = value.match(text, pair.end())
            end = found.end() if found else pair.end()
        if end > pair.end():
            yield text[place : pair.end()] + HIDDEN
            place = end
    yield text[place:]


def _closing(text: str, start: int, quote: str) -> int:
    """Where the quote stands that closes a value; -1: nowhere. A quote in the value has more backslashes, and a value
    may end with some; where no quote fits that rule, as after a folder of Windows, it is the first."""
    before = len(quote) - 1
    for found in re.compile(rf"(?<!\\)\\*+{quote[-1]}").finditer(text, start):
        if (len(found[0]) - 1) % (2 * before + 2) == before:
            return found.end() - len(quote)
    return text.find(quote, start)


def _gives_value(pair: re.Match[str]) -> bool:
    """Whether this is how values are given, and not the name and the next word of a sentence."""
    if ":" in pair["between"]:
        return bool(pair["open"] or pair["quote"] or HEADER.search(pair["name"]))
    return True  # after "=", or of an option


def redacted(value: Any, key: str = "") -> Any:
    """A configuration, or the part of it under `key`, without secrets: texts and numbers under a secret's name are
    hidden."""
    if isinstance(value, dict):
        return {str(name): redacted(part, key if is_secret(key) else str(name)) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(part, key) for part in value]
    if is_secret(key) and not isinstance(value, bool | None) and value != "":
        return HIDDEN
    return hide(value) if isinstance(value, str) else value
