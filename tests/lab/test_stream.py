"""All-reduces with a deadline of a Communicator: what is started, and when a result is a plain mean."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from optireduce.report import Report
from optireduce.trials.stream import Stream, missing_share


class Transport:
    """Starts operations that are done at once, with prepared reports."""

    def __init__(self, reports: list[Report]) -> None:
        self.config = SimpleNamespace(wire="auto")
        self.started: list[dict[str, Any]] = []
        self._reports = reports

    def start(self, *_arguments: Any, **options: Any) -> Any:
        self.started.append(options)
        report = self._reports.pop(0)
        return SimpleNamespace(wait=lambda: True, result=lambda: report)


def report(**fields: Any) -> Report:
    return Report(operation=0, bytes=1000, elapsed_seconds=0.1, members=(0, 1), **fields)


def stream_of(*reports: Report) -> tuple[Stream, Transport]:
    transport = Transport(list(reports))
    return Stream(SimpleNamespace(_transport=transport)), transport  # type: ignore[arg-type]


def test_every_operation_is_a_step_of_one_stream() -> None:
    stream, transport = stream_of(*[report()] * 3)
    for _ in range(3):
        stream.average(np.zeros(250, np.float32))
    assert [options["step"] for options in transport.started] == [0, 1, 2]
    assert {options["stream"] for options in transport.started} == {1}
    assert all(options["bounded"] and not options["narrow"] for options in transport.started)


def test_results_are_plain_means_again_once_no_residual_can_be_left() -> None:
    stream, _ = stream_of(report(), report(excluded={1: 500}), *[report()] * 5)
    clean = []
    for _ in range(7):
        stream.average(np.zeros(250, np.float32))
        clean.append(stream.clean)
    assert clean == [True, False, False, False, False, True, True]


def test_the_missing_share_is_that_of_either_delivery() -> None:
    assert missing_share(report()) == 0
    assert missing_share(report(excluded={1: 500})) == 0.25
    assert missing_share(report(lost_contribution_bytes=100, lost_decision_bytes=50)) == 0.15
