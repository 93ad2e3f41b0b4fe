"""`optireduce report`: a page with tables and plots from the logs of training runs."""

from .command import report

__all__ = ["report"]
