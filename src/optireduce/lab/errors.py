"""What a lab raises."""

from __future__ import annotations

from ..errors import LocalError


class LabError(LocalError):
    """The lab cannot work on this machine, or was asked for the impossible; the text says what is
    missing."""
