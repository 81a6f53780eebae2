"""Extracts the contract of a release: `python -m scripts.contract vllm|torch WHEEL_OR_FOLDER [OUT]`.

Reads the sources (a wheel, or a folder with the package) without importing them, so neither a GPU nor the package is
needed. Writes a few kilobytes of JSON, which the tests compare with rhymed (`tests/data/`). For a new release:

    pip download --no-deps --only-binary=:all: --platform manylinux_2_28_x86_64 vllm==0.34.0
    python -m scripts.contract vllm vllm-0.34.0-*.whl tests/data/vllm/0.34.json

then the same with the torch that its wheel names, and a row in `rhymed/histospec/versions.py`. When the code uses
another name of torch, extract the contract of each release again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from scripts.contract import torch, vllm

EXTRACT = {"vllm": vllm.contract, "torch": torch.contract}

if __name__ == "__main__":
    if len(sys.argv) not in (3, 4) or sys.argv[1] not in EXTRACT:
        sys.exit("usage: python -m scripts.contract vllm|torch WHEEL_OR_FOLDER [OUT]")
    made = json.dumps(EXTRACT[sys.argv[1]](Path(sys.argv[2])), indent=1) + "\n"
    if len(sys.argv) > 3:
        Path(sys.argv[3]).write_text(made)
    else:
        print(made, end="")
