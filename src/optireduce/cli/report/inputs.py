"""Which files belong to which run, from what the user typed."""

from __future__ import annotations

from collections.abc import Sequence
from glob import glob
from pathlib import Path

from ..errors import UsageError


def parse_inputs(arguments: Sequence[str]) -> dict[str, list[Path]]:
    """The files of each run, by its label, both in the user's order. A file counts once in a run."""
    runs: dict[str, dict[Path, None]] = {}
    for argument in arguments:
        label, text = _split(argument)
        for path in _files(text):
            name = label if label is not None else _label_of(text, path)
            if not name.isprintable():
                raise UsageError(f"{name!r} is no label: it has characters that cannot be shown")
            runs.setdefault(name, {})[path] = None
    return {label: list(paths) for label, paths in runs.items()}


def _split(argument: str) -> tuple[str | None, str]:
    """Label and path. In `./a=b.jsonl` the = belongs to the path: labels have no slash."""
    label, equals, path = argument.partition("=")
    if not equals or "/" in label:
        return None, argument
    if not label.strip() or not path:
        raise UsageError(f"{argument!r} is not complete; write LABEL=PATH, such as gloo=logs/gloo")
    return label.strip(), path


def _files(text: str) -> list[Path]:
    path = Path(text).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        return _found(text, sorted(path.glob("*.jsonl")), "the folder has no *.jsonl file")
    matches = sorted(Path(match) for match in glob(str(path), recursive=True))
    return _found(text, [match for match in matches if match.is_file()], "there is no such file")


def _found(text: str, files: list[Path], problem: str) -> list[Path]:
    if not files:
        raise UsageError(f"{text!r}: {problem}; name a log file, a folder with *.jsonl files, or a pattern")
    return files


def _label_of(text: str, path: Path) -> str:
    folder = Path(text).expanduser()
    return folder.resolve().name if folder.is_dir() else path.stem
