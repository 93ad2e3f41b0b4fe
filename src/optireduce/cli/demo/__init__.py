"""`optireduce demo`: the same small training run on two backends."""

from .command import demo

__all__ = ["demo"]
