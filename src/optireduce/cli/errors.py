"""The two ways a command ends early. `main` prints either as one line, never as a traceback."""


class UsageError(ValueError):
    """The user asked for the impossible. The text names the option, the value and what would be right."""

    exit_code = 2


class CommandFailed(RuntimeError):  # noqa: N818 - reads as what happened, not as a kind of exception
    """The request was fine but could not be carried out: a rank died, a file is not writable."""

    exit_code = 1
