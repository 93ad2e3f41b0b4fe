"""Which part of a model is sent again in which step, so that replicas stay equal."""

from __future__ import annotations

_LEAST_WORDS = 176  # of 8 bytes: one packet; a smaller one costs as much
# A round takes this share of all steps so far, between the first round's length and what was asked for: the
# earlier in its training, the faster a replica moves, and so away from the others once it has lost something.
_SHARE_OF_STEPS = 8
_FIRST_ROUND_STEPS = 5


class ResyncWindows:
    """Cuts ``elements`` into windows of ``ranks`` equal parts, one window for each step. Rank r is the source
    of the r-th part. All of it is visited at least every ``steps`` steps, at first more often."""

    def __init__(self, elements: int, ranks: int, steps: int, least: int = _LEAST_WORDS) -> None:
        if elements < 1 or ranks < 1 or steps < 1:
            raise ValueError(
                f"elements = {elements}, ranks = {ranks}, steps = {steps} is not usable: each must be at "
                f"least 1"
            )
        self.elements = elements
        self._ranks, self._steps, self._least = ranks, steps, least

    def window(self, step: int) -> slice:
        """The elements that are sent in this step."""
        index, size = self._place(step)
        return slice(index * size, min((index + 1) * size, self.elements))

    def size(self, step: int) -> int:
        """Of this step's window when it is padded to equal parts: the last one of a round may be shorter."""
        return self._place(step)[1]

    def _place(self, step: int) -> tuple[int, int]:
        """Which window of its round, and the size of those."""
        done = 0
        while True:
            steps = min(max(done // _SHARE_OF_STEPS, _FIRST_ROUND_STEPS), self._steps)
            part = max(-(-self.elements // (self._ranks * steps)), self._least)
            size = part * self._ranks
            windows = -(-self.elements // size)
            if steps == self._steps or part == self._least:  # all further rounds are the same
                return (step - done) % windows, size
            if step - done < windows:
                return step - done, size
            done += windows
