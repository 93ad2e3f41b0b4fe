"""`optireduce experiment`: the papers' claims, measured on this machine."""

from .command import experiment

__all__ = ["experiment"]
