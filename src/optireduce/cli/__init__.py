"""The `optireduce` command. Every subcommand imports torch only when it runs, so `--help` is quick."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from ..version import version
from .bench import bench
from .demo import demo
from .doctor import doctor
from .errors import CommandFailed, UsageError
from .experiment import experiment
from .lab import lab
from .report import report

# Some versions of typer bundle click, others depend on it; typer's own exception leads to the right one.
_ClickException: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="optireduce",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(bench)
app.command()(demo)
app.command()(doctor)
app.command()(experiment)
app.command()(report)
app.add_typer(lab)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"optireduce {version()}")
        raise typer.Exit()


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    _version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
    ),
) -> None:
    """Gradient all-reduce over UDP for PyTorch DDP: measure it, see the proof, check a machine."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done, 1 failed, 2 bad input, 130 interrupted."""
    try:
        code = app(args=arguments, prog_name="optireduce", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except (UsageError, CommandFailed) as error:
        return _complain(str(error), error.exit_code)
    except _ClickException as error:
        return _complain(error.format_message(), 2)  # type: ignore[attr-defined]
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted", 130)


def _complain(message: str, exit_code: int) -> int:
    one_line = " ".join(message.split())
    print(f"optireduce: {one_line}", file=sys.stderr)
    return exit_code
