"""Secrets in the tracked files: keys, tokens and passwords, by their form. Needs no network.

What is no secret although it has the form of one, such as the password of an example, stands in allowed.txt: a path,
a blank, and the text. A line there that matches nothing any more is an error, so the list stays short.
"""

from __future__ import annotations

import math
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ALLOWED = Path(__file__).with_name("allowed.txt")
FORMS = {  # what it is -> words of which one is in it (a quick look, before the form) and its form
    "a private key": ("PRIVATE", r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY(?: BLOCK)?-----"),
    "a key of AWS": ("AKIA ASIA", r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    "a token of GitHub": (
        "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_",
        r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60,})",
    ),
    "a token of GitLab": ("glpat-", r"\bglpat-[A-Za-z0-9_-]{20,}"),
    "a token of Hugging Face": ("hf_", r"\bhf_[A-Za-z0-9]{30,}\b"),
    "a token of a package index": ("pypi-AgE npm_", r"\b(?:pypi-AgE[A-Za-z0-9_-]{50,}|npm_[A-Za-z0-9]{36})"),
    "a token of Slack": ("xox", r"\bxox[abposr]-[A-Za-z0-9-]{10,}"),
    "a key of Google": ("AIza", r"\bAIza[0-9A-Za-z_-]{35}"),
    "a key of a model's provider": ("sk-", r"\bsk-(?:ant-|proj-)?[A-Za-z0-9_-]{24,}"),
    "a signed token (JWT)": ("eyJ", r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"),
    "a password in an address": (  # but for the words that examples have there
        "://",
        r"://[^\s/:@'\"`<>{}$*]{1,64}:(?!(?:secret|password|pass|pw|p)@)[^\s/'\"`<>{}$*]{1,200}@[A-Za-z0-9]",
    ),
}
NAMED = re.compile(  # a long value of a name such as `api_key`; random ones are meant
    r"(?:passw(?:or)?d|secret|token|api_?key|credential)[a-z_-]{0,20}['\"]?\s{0,4}[:=]\s{0,4}['\"]?"
    r"([A-Za-z0-9+/=_~-]{16,200})(?![\w.\[(])",
    re.IGNORECASE,
)
RUN_KEY = re.compile(
    r"^[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}$", re.MULTILINE
)  # Z85, as `rhymed keygen` writes it
FILE_NAMES = re.compile(
    r"\.(?:secret|p12|pfx|jks|keystore|kdbx)$|^(?:id_(?:rsa|dsa|ecdsa|ed25519)|\.netrc|\.pypirc)$"
)
RANDOM_BITS = 3.5  # entropy of a character from which a long value counts as random
RUN_KEY_TURNS = 17  # of 39; one of 100,000 keys has fewer, and so has nearly every line of code


class NoRepository(Exception):
    """Which files are tracked is not known."""


@dataclass(frozen=True)
class Finding:
    path: str
    line: int
    what: str
    text: str  # the secret: not for the screen

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}: {self.text[:4]}… ({len(self.text)} characters)"


def tracked(root: Path) -> list[str]:
    """Paths of the files that git knows, or would add. Raises `NoRepository`."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    except FileNotFoundError:
        raise NoRepository("git is not installed") from None
    if done.returncode:
        raise NoRepository(f"git lists no files of {root}: {done.stderr.strip()[:200]}")
    return sorted(path for path in set(done.stdout.split("\0")) if path and (root / path).is_file())


def scan(root: Path, paths: Iterable[str]) -> Iterator[Finding]:
    """Findings in the files and their names, allowed ones too."""
    for path in paths:
        if FILE_NAMES.search(Path(path).name):
            yield Finding(path, 1, "a file of keys or passwords", Path(path).name)
        content = (root / path).read_bytes()
        if b"\0" not in content[:8192]:
            yield from secrets_in(path, content.decode(errors="replace"))


def secrets_in(path: str, text: str) -> Iterator[Finding]:
    """Findings in a text."""
    for what, (words, form) in FORMS.items():
        present = any(word in text for word in words.split(" "))
        for match in re.finditer(form, text) if present else ():
            yield Finding(path, _line(text, match.start()), what, match[0])
    for match in NAMED.finditer(text):
        if _random(match[1]):
            yield Finding(path, _line(text, match.start()), "a value of that name", match[1])
    for match in RUN_KEY.finditer(text):
        if _is_run_key(match[0]):
            yield Finding(path, _line(text, match.start()), "a key of a run", match[0])


def unexpected(findings: Iterable[Finding], allowed: str) -> list[str]:
    """Sentences: findings that are not allowed, and allowances without a finding."""
    permitted = {line for line in allowed.splitlines() if line and not line.startswith("#")}
    found = {f"{finding.path} {finding.text}": finding for finding in findings}
    unused = [
        f"{ALLOWED.name}: {line.split()[0]}: no such text there; remove the line" for line in permitted - {*found}
    ]
    return [str(finding) for key, finding in sorted(found.items()) if key not in permitted] + sorted(unused)


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _random(value: str) -> bool:
    """Whether letters and digits are mixed and spread as in a key, not as in words."""
    letters = any(map(str.islower, value)) or any(map(str.isupper, value))
    shares = [count / len(value) for count in Counter(value).values()]
    entropy = -sum(share * math.log2(share) for share in shares)
    return letters and any(map(str.isdigit, value)) and entropy >= RANDOM_BITS


def _is_run_key(value: str) -> bool:
    """Small and capital letters, digits and signs take turns: in words they do so less often."""
    kinds = [(character.islower(), character.isupper(), character.isdigit()) for character in value]
    return sum(kind != following for kind, following in pairwise(kinds)) >= RUN_KEY_TURNS
