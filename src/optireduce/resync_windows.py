"""Which part of a model is sent again in which step, so that replicas stay equal."""

from __future__ import annotations

_LEAST_WORDS = 176  # of 8 bytes: one packet; a smaller one costs as much


class ResyncWindows:
    """Cuts ``elements`` into windows of ``ranks`` equal parts, one window for each step. Rank r is the source
    of the r-th part. All of it is visited at least every ``steps`` steps."""

    def __init__(self, elements: int, ranks: int, steps: int, least: int = _LEAST_WORDS) -> None:
        if elements < 1 or ranks < 1 or steps < 1:
            raise ValueError(
                f"elements = {elements}, ranks = {ranks}, steps = {steps} is not usable: each must be at "
                f"least 1"
            )
        self.elements = elements
        self.part = max(-(-elements // (ranks * steps)), least)
        self.size = self.part * ranks
        """Of every window but the last, which may be shorter: pad it."""
        self.count = -(-elements // self.size)
        """Windows in a round."""

    def window(self, step: int) -> slice:
        """The elements that are sent in this step."""
        begin = step % self.count * self.size
        return slice(begin, min(begin + self.size, self.elements))
