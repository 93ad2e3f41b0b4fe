"""The logs of training runs, read line by line. A record of some 900 bytes leaves some 80 in memory."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .errors import PageError
from .log_lines import BadRecordError, HeldOut, NotJsonError, Operation, Record, Step, Unknown, parse_line

_REPORT_BYTES = 1 << 20  # progress moves in such steps


def _whole_numbers() -> array[int]:
    return array("q")


def _numbers() -> array[float]:
    return array("d")


@dataclass
class StepColumns:
    """Steps, or evaluations, of all ranks: one place in each column a record. NaN: not known."""

    step: array[int] = field(default_factory=_whole_numbers)
    time: array[float] = field(default_factory=_numbers)
    seconds: array[float] = field(default_factory=_numbers)
    loss: array[float] = field(default_factory=_numbers)

    def add(self, record: Step | HeldOut) -> None:
        """Keep one record; an evaluation has no duration."""
        self.step.append(record.step)
        self.time.append(record.time)
        self.seconds.append(record.seconds if isinstance(record, Step) else math.nan)
        self.loss.append(record.loss)


@dataclass
class OperationColumns:
    """Operations of all ranks that did not fail: one place in each column a record. NaN: not known."""

    rank: array[int] = field(default_factory=_whole_numbers)
    time: array[float] = field(default_factory=_numbers)
    size: array[int] = field(default_factory=_whole_numbers)  # bytes; 0: not known
    elapsed_ms: array[float] = field(default_factory=_numbers)
    stood_still_ms: array[float] = field(default_factory=_numbers)
    missing_share: array[float] = field(default_factory=_numbers)
    deadline_ms: array[float] = field(default_factory=_numbers)  # NaN also: it had no deadline
    usual_ms: array[float] = field(default_factory=_numbers)
    behind_ms: array[float] = field(default_factory=_numbers)

    def add(self, record: Operation) -> None:
        """Keep one record."""
        self.rank.append(record.rank)
        self.time.append(record.time)
        self.size.append(record.size)
        self.elapsed_ms.append(record.elapsed_ms)
        self.stood_still_ms.append(record.stood_still_ms)
        self.missing_share.append(record.missing_share)
        self.deadline_ms.append(record.deadline_ms if record.bounded else math.nan)
        self.usual_ms.append(record.usual_ms if record.bounded else math.nan)
        self.behind_ms.append(record.behind_ms)


@dataclass
class Exclusions:
    """Contributions that operations with a deadline did not include: one place in each column for each record
    and excluded rank. All members log the same."""

    time: array[float] = field(default_factory=_numbers)
    rank: array[int] = field(default_factory=_whole_numbers)
    bytes: array[int] = field(default_factory=_whole_numbers)

    def add(self, record: Operation) -> None:
        """Keep those of one record."""
        for rank, count in record.excluded.items():
            if count:
                self.time.append(record.time)
                self.rank.append(rank)
                self.bytes.append(count)


@dataclass
class Run:
    """All that the page needs of one run. The order in which records were added does not matter."""

    label: str
    first_time: float = math.inf
    ranks: set[int] = field(default_factory=set)
    steps: StepColumns = field(default_factory=StepColumns)
    held_out: StepColumns = field(default_factory=StepColumns)
    operations: OperationColumns = field(default_factory=OperationColumns)
    closed_by: Counter[str] = field(default_factory=Counter)
    repaired_bytes: int = 0
    carried_bytes: int = 0
    void_bytes: int = 0  # once for each rank that logged them
    dropped_bytes: int = 0
    exclusions: Exclusions = field(default_factory=Exclusions)
    waits: dict[int, array[float]] = field(default_factory=dict)  # by rank: ms that others waited for it
    views: dict[tuple[int, tuple[int, ...]], float] = field(default_factory=dict)  # when each was first seen
    errors: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)  # kinds
    cut_off: list[str] = field(default_factory=list)  # files whose last line is not whole

    @property
    def empty(self) -> bool:
        """Whether there was nothing to show."""
        return not self.ranks

    def add(self, record: Record) -> None:
        """Keep what is needed of one record."""
        if isinstance(record, Unknown):
            self.unknown[record.kind] += 1
            return
        self.first_time = min(self.first_time, record.time)
        self.ranks.add(record.rank)
        if isinstance(record, Step):
            self.steps.add(record)
        elif isinstance(record, HeldOut):
            self.held_out.add(record)
        else:
            self._add_operation(record)

    def _add_operation(self, record: Operation) -> None:
        """How long a failed operation took, and what it lacks, says nothing about those that work."""
        if record.error is not None:
            self.errors[record.error] += 1
            return
        self.operations.add(record)
        self.closed_by[record.closed_by] += 1
        self.repaired_bytes += record.repaired_bytes
        self.carried_bytes += record.carried_bytes
        self.void_bytes += record.void_bytes
        self.dropped_bytes += record.dropped_bytes
        self.exclusions.add(record)
        if record.waited_for is not None and record.waited_ms > 0:
            self.waits.setdefault(record.waited_for, _numbers()).append(record.waited_ms)
        if record.members:
            view = (record.view, record.members)
            self.views[view] = min(self.views.get(view, math.inf), record.time)


def read_run(label: str, paths: Iterable[Path], advance: Callable[[int], None] = lambda _bytes: None) -> Run:
    """The run whose records are in these files. ``advance`` is told about bytes that have been read.

    Raises PageError for a file that cannot be read, and for a line that is no record; but the last line of a
    file may be cut off, because its writer died.
    """
    run = Run(label)
    for path in paths:
        try:
            _read_file(run, path, advance)
        except OSError as error:
            raise PageError(f"cannot read {str(path)!r}: {error.strerror}") from error
    return run


def _read_file(run: Run, path: Path, advance: Callable[[int], None]) -> None:
    broken: int | None = None  # the line's number
    for number, line in _lines(path, advance):
        if broken is not None:
            raise PageError(
                f"{path}, line {broken}: not JSON; only the last line of a file may be cut off. "
                "Remove the line, or name another file"
            )
        try:
            run.add(parse_line(line))
        except NotJsonError:
            broken = number
        except BadRecordError as error:
            raise PageError(f"{path}, line {number}: {error}") from error
    if broken is not None:
        run.cut_off.append(str(path))


def _lines(path: Path, advance: Callable[[int], None]) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, with their numbers."""
    unreported = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            unreported += len(line)
            if unreported >= _REPORT_BYTES:
                advance(unreported)
                unreported = 0
            if line.strip():
                yield number, line
    advance(unreported)
