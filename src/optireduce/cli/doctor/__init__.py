"""`optireduce doctor`: is this machine, and the path between two of them, fit for the job?"""

from .command import doctor

__all__ = ["doctor"]
