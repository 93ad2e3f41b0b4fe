"""All-reduces with a deadline on one array, as attach() makes them for a bucket of gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..communicator import Communicator
from ..dtypes import DTYPES, OPS
from ..report import Report, StepReport

Bucket = np.ndarray[Any, np.dtype[np.float32]]

_STREAM = 1
_RESIDUAL_STEPS = 3  # no residual of a live rank gets older


class ElasticCommunicator(Communicator):
    """Goes on without a silent rank, as attach() does."""

    _fixed_membership = False


class Stream:
    """The operations on one bucket, one a step: a contribution that one of them excludes rides with the next.

    A Communicator's own operations are exact; these go to its transport.
    """

    def __init__(self, group: Communicator) -> None:
        self._transport = group._transport
        self.step = 0
        self._last_missing = -_RESIDUAL_STEPS - 1  # the step in which something was missing

    def average(self, bucket: Bucket) -> Report:
        """The mean over all members, in place."""
        operation = self._transport.start(
            bucket.ctypes.data,
            bucket.size,
            DTYPES["float32"],
            OPS["mean"],
            bounded=True,
            narrow=self._transport.config.wire != "auto",  # Gloo, beside it, sends float32
            stream=_STREAM,
            step=self.step,
            keep_alive=bucket,
        )
        operation.wait()
        report = operation.result()
        if missing_share(report) > 0 or report.void_bytes:
            self._last_missing = self.step
        self.step += 1
        return report

    @property
    def clean(self) -> bool:
        """Whether the last result is the mean of fresh contributions alone: nothing was missing in it, and no
        rank can have had a residual that went along."""
        return self.step - 1 > self._last_missing + _RESIDUAL_STEPS

    def take_residual(self) -> Bucket:
        """What this rank has contributed and no decision included; the group forgets it. Empty: nothing."""
        _, scale, kept = self._transport.engine.take_residual(_STREAM)
        return np.frombuffer(kept, np.float32) / scale


def missing_share(report: Report | StepReport) -> float:
    """The share of all contributions that missed the deadline, from 0 to 1. They are carried into the next
    operation or, with best effort, lost, as decisions may be too."""
    return report.loss_share or report.excluded_share
