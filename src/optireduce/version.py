"""The installed version, looked up only when somebody asks: reading package metadata costs milliseconds."""

from __future__ import annotations

from functools import cache
from importlib import metadata


@cache
def version() -> str:
    """Version of the installed distribution; "unknown" when running from a source tree that is not
    installed."""
    try:
        return metadata.version("optireduce")
    except metadata.PackageNotFoundError:
        return "unknown"
