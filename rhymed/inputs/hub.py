"""Datasets and models of the Hugging Face hub, from the network or the local cache.

One request with a time limit comes first: it raises an error for names that do not exist or may not be read, and if
the hub does not answer, only the cache is used (`HF_HUB_OFFLINE=1` does the same without a request). The libraries'
own retries would take minutes. Slow to import; call it in a thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from rhymed.core.config import Dataset
from rhymed.core.errors import ConfigError, DataError, RhymedError
from rhymed.inputs.files import Read, similar

log = logging.getLogger(__name__)

Kind = Literal["model", "dataset"]

MOST_FILES = 20_000  # of a dataset in a folder

PATIENCE_S = 5.0
"""For the answer whether a repository exists."""

FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer*", "*.model", "merges.txt", "vocab.txt"]
"""Files of a model."""

NOT_FILES = ["*/*", "consolidated*"]
"""The same weights in other formats."""

IDENTIFIER = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def is_identifier(text: str) -> bool:
    """Whether this can be a name on the hub."""
    return IDENTIFIER.fullmatch(text) is not None


# Datasets of the hub.


def read_hub(data: Dataset, place: str) -> Read:
    """Rows of one split, with places like `openai/gsm8k main train, row 7`."""
    try:
        import datasets
    except ImportError:
        raise ConfigError("data.source = 'hub' needs datasets: pip install 'rhymed[data]'") from None
    datasets.disable_progress_bars()
    logging.getLogger("datasets").setLevel(logging.CRITICAL)  # its messages are in the exceptions
    if (dataset := _local(datasets, data)) is None:
        dataset = _remote(datasets, data)
    number = 0
    for table in dataset.with_format("arrow").iter(batch_size=1024):  # as stored, without decoding
        for row in table.to_pylist():
            yield f"{place}, row {number}", row
            number += 1


def _local(datasets: Any, data: Dataset) -> Any:
    """The split in a local folder; None if the path does not exist and may be a name on the hub."""
    folder = Path(data.path).expanduser()
    if folder.is_dir():
        _check_few(folder)
        return _split(datasets, data, str(folder))
    if folder.exists():
        raise DataError(
            f"{folder}: this kind of file cannot be read: name a *.jsonl, *.parquet, a folder or a hub id"
        )
    if not is_identifier(data.path):
        raise DataError(f"data.path = {data.path!r}: no such folder{similar(folder)}")
    return None


def _check_few(folder: Path) -> None:
    """The library opens every file below the folder: of a whole disk it would never end. Raises `DataError`."""
    files = 0
    for _, _, names in os.walk(folder):
        files += len(names)
        if files > MOST_FILES:
            raise DataError(f"{folder} has more than {MOST_FILES:,} files: name the folder of the dataset itself")


def _remote(datasets: Any, data: Dataset) -> Any:
    why = check_repository("dataset", data.path, data.revision, DataError)
    try:
        with _offline() if why else contextlib.nullcontext():
            return _split(datasets, data, data.path)
    except (ConnectionError, FileNotFoundError) as error:
        raise DataError(
            _unreachable("dataset", data.path, why or f"the connection to the hub was lost: {error}")
        ) from None


def _split(datasets: Any, data: Dataset, path: str) -> Any:
    """The dataset of `data.subset` and `data.split`. Raises `DataError` that lists the existing ones."""
    with _one_line_errors(path):
        try:
            builder = datasets.load_dataset_builder(path, data.subset or None, revision=data.revision or None)
        except ValueError as error:
            raise DataError(f"{path}: data.subset = {data.subset!r}: {' '.join(str(error).split())}") from None
        name = re.split(r"[\[+]", data.split)[0]
        splits = list(builder.info.splits or builder.config.data_files or [])
        if splits and name not in splits:
            raise DataError(
                f"{path}: data.split = {data.split!r}: there is no such split; it has {', '.join(splits)}"
            )
        builder.download_and_prepare()
        try:
            return builder.as_dataset(split=data.split)
        except ValueError as error:
            raise DataError(f"{path}: data.split = {data.split!r}: {error}") from None


@contextlib.contextmanager
def _one_line_errors(path: str) -> Iterator[None]:
    """Turns the library's errors about data into a `DataError` of one line; network errors pass through."""
    try:
        yield
    except (DataError, ConnectionError):
        raise
    except Exception as error:
        if type(error) is FileNotFoundError:
            raise
        # the text of a DatasetGenerationError is always the same
        reason = error.__cause__ if type(error).__name__ == "DatasetGenerationError" and error.__cause__ else error
        text = " ".join(str(reason).split())
        raise DataError(f"data.path = {path!r} cannot be read: {type(reason).__name__}: {text}") from None


# Models of the hub.


def fetch_model(name: str, revision: str, *, files: Sequence[str] = FILES) -> Path:
    """The folder of a snapshot: from the cache if it is complete, else from the hub."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError
        from huggingface_hub.utils.tqdm import disable_progress_bars
    except ImportError:
        raise ConfigError("models of the hub need huggingface_hub: pip install 'rhymed[rollout]'") from None

    if not sys.stderr.isatty():
        disable_progress_bars()

    def get(*, local: bool) -> Path:
        folder = snapshot_download(
            name,
            revision=revision or None,
            allow_patterns=list(files),
            ignore_patterns=NOT_FILES,
            local_files_only=local,
        )
        return Path(folder)

    with contextlib.suppress(LocalEntryNotFoundError):
        return get(local=True)
    why = check_repository("model", name, revision, ConfigError)
    try:
        return get(local=bool(why))
    except LocalEntryNotFoundError:
        raise ConfigError(_unreachable("model", name, why or "the hub does not answer")) from None
    except Exception as error:
        raise ConfigError(f"model.path = {name!r} cannot be fetched: {type(error).__name__}: {error}") from error


# The hub: whether a repository is there and may be read.


def check_repository(kind: Kind, name: str, revision: str, error: type[RhymedError]) -> str:
    """Why the hub cannot be used; empty: it can. Raises `error` if the repository cannot be read."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub import errors as hub

    if constants.is_offline_mode():
        return "HF_HUB_OFFLINE is set"
    section = "model" if kind == "model" else "data"
    page = f"{constants.ENDPOINT}/{'datasets/' if kind == 'dataset' else ''}{name}"
    api = HfApi()
    try:
        info = api.repo_info(name, repo_type=kind, revision=revision or None, timeout=PATIENCE_S)
        if info.gated or info.private:
            api.auth_check(name, repo_type=kind)
    except (hub.HfHubHTTPError, hub.HFValidationError) as reason:
        status = reason.response.status_code if isinstance(reason, hub.HfHubHTTPError) else 404
        if status in (401, 403, 404):
            at = f" at revision {revision!r}" if revision else ""
            raise error(
                f"{section}.path = {name!r}{at}: the hub refuses this {kind}, or has none of that name"
                f" ({type(reason).__name__}): see {page}; a private or gated one needs `hf auth login` (or HF_TOKEN)"
                f" and its terms accepted there. There is no such path on this machine"
                f" either{_near(name)}"
            ) from None
        why = f"{constants.ENDPOINT} answers {status}"
    except Exception as reason:  # of the HTTP client: no route, no name, a time-out, a proxy
        why = f"{constants.ENDPOINT} cannot be reached ({type(reason).__name__})"
    else:
        return ""
    log.warning("%s: looking for %s in the local cache", why, name)
    return why


def _near(name: str) -> str:
    """What is like it on this machine, if it may be a path."""
    path = Path(name).expanduser()
    return similar(path) if path.parent.is_dir() else ""


def _unreachable(kind: Kind, name: str, why: str) -> str:
    flag = " --repo-type dataset" if kind == "dataset" else ""
    key = "model.path" if kind == "model" else "data.path"
    return (
        f"{key} = {name!r}: not in the local cache, and {why}{_near(name)}. With a network:"
        f" `hf download {name}{flag} --local-dir FOLDER`, then set {key} to that folder"
    )


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Both libraries read HF_HUB_OFFLINE only at import."""
    import datasets
    from huggingface_hub import constants

    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before
