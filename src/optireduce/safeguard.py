"""Whether to take a step that excluded many contributions.

Every rank decides by itself. All ranks decide alike, because the included sets of a step are the same on all
members.
"""

from __future__ import annotations

import logging

from .errors import TrainingHaltedError
from .report import StepReport

_logger = logging.getLogger("optireduce")


class Safeguard:
    """Judges steps: take, skip, or halt."""

    def __init__(self, skip_above: float, halt_after: int) -> None:
        self._skip_above = skip_above
        self._halt_after = halt_after
        self._in_a_row = 0
        self._reported: tuple[int, ...] = ()
        self.skipped_steps = 0

    def may_step(self, step: StepReport, missing: float) -> bool:
        """Whether the optimizer should take this step. ``missing``: the share that is not in its gradient,
        the same on all ranks."""
        self._tell_non_finite(step)
        if missing <= self._skip_above:
            self._in_a_row = 0
            return True
        self.skipped_steps += 1
        self._in_a_row += 1
        _logger.warning(
            "step %d excluded %.1f %% of the contributions and is skipped on all ranks (%d in a row)",
            step.step,
            missing * 100,
            self._in_a_row,
        )
        if self._in_a_row >= self._halt_after:
            raise self._halted(step, missing)
        return False

    def state_dict(self) -> dict[str, int]:
        """What a rank that returns by a snapshot must know to halt together with the others."""
        return {"in_a_row": self._in_a_row}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Take over another rank's."""
        self._in_a_row = state["in_a_row"]

    def _tell_non_finite(self, step: StepReport) -> None:
        if step.non_finite and step.non_finite != self._reported:
            ranks = ", ".join(map(str, step.non_finite))
            _logger.warning("step %d: infinities or NaNs came from rank %s", step.step, ranks)
        self._reported = step.non_finite

    def _halted(self, step: StepReport, missing: float) -> TrainingHaltedError:
        average = sum(step.excluded.values()) / max(len(step.excluded), 1)
        most = [rank for rank, count in sorted(step.excluded.items()) if count >= average]
        names = f"rank {', '.join(map(str, most))}" if most else "no single rank"
        return TrainingHaltedError(
            f"{self._in_a_row} steps in a row excluded more than skip_above = {self._skip_above:.0%} of the "
            f"contributions (the last, step {step.step}, {missing:.0%}); most of them came from {names}. "
            f"Check the links and hosts of these ranks, or raise skip_above or halt_after",
            ranks=most,
        )
