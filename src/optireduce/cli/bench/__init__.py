"""`optireduce bench`: all-reduce backends side by side in one run."""

from .command import bench

__all__ = ["bench"]
