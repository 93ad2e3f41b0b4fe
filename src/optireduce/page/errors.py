"""What can go wrong with a page: a log that is none, a file not writable, a library that is missing."""

from __future__ import annotations

from ..errors import LocalError


class PageError(LocalError):
    """The page cannot be made; the text names the file, the line or the package, and what would be right."""
