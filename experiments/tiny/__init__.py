"""The stand-in base models of scale=cpu: where their weights lie, and that they are the ones that were built."""

from __future__ import annotations

import hashlib
from pathlib import Path

from experiments.errors import UserError

PACKAGED = Path(__file__).resolve().parent.parent / "tiny_models"
PREFIX = "package:"


def hash_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_sums() -> dict[str, str]:
    """{relative file: sha256} of the packaged models."""
    lines = (PACKAGED / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}


def resolve_model_path(source: str) -> str:
    """A packaged model's directory (its files verified), an existing local directory, or a hub name as it is.

    UserError: unknown packaged name, changed packaged file, or something that looks like a path and is no directory.
    """
    if not source.startswith(PREFIX):
        path = Path(source).expanduser()
        if path.is_dir():
            return str(path)
        # A hub name is `name` or `owner/name`; anything else can only have been meant as a path.
        if source.startswith((".", "/", "~")) or source.count("/") > 1:
            raise UserError(
                f"model directory {source} does not exist. Give a Hugging Face model directory, or a packaged {PREFIX}<name>."
            )
        return source
    name = source.removeprefix(PREFIX)
    files = {file: digest for file, digest in read_sums().items() if file.startswith(f"{name}/")}
    if not files:
        known = ", ".join(sorted({f.split("/")[0] for f in read_sums()}))
        raise UserError(f"no packaged model {name!r}; there are {known}")
    for file, digest in files.items():
        if not (PACKAGED / file).is_file() or hash_file(PACKAGED / file) != digest:
            raise UserError(
                f"{PACKAGED / file} is not the file that was built (SHA256SUMS). Restore it, or rebuild with make tiny-models."
            )
    return str(PACKAGED / name)
