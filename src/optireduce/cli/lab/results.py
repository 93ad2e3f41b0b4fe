"""What commands that check a promise share: their result as JSON, and failures as one line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from ...errors import OptiReduceError
from ...trials.ranks import RankFailed
from ..errors import CommandFailed

Out = Annotated[Path | None, typer.Option("--out", help="Write everything that ranks told there, as JSON.")]


@contextmanager
def failures_as_errors() -> Iterator[None]:
    """A lab that cannot be built, or a rank that ends early, ends the command."""
    try:
        yield
    except (OptiReduceError, RankFailed) as error:
        raise CommandFailed(str(error)) from error


def write_result(path: Path | None, result: dict[str, Any]) -> None:
    """Nothing where no file was asked for."""
    if path is None:
        return
    try:
        path.write_text(json.dumps(result) + "\n")
    except OSError as error:
        raise CommandFailed(f"--out: cannot write {str(path)!r}: {error.strerror}") from error
