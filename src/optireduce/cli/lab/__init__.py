"""`optireduce lab`: a cluster on one machine, from Linux network namespaces."""

from __future__ import annotations

import typer

from .bench import bench
from .busy import busy
from .calibrate import calibrate
from .check import check
from .cut import cut
from .environments import environments
from .flood import flood
from .kill import kill
from .pauses import pauses
from .replicas import replicas
from .restart import restart
from .returns import returns
from .run import run
from .soak import soak

lab = typer.Typer(
    name="lab",
    help="A cluster on one machine, from network namespaces: slow links, loss, bursts, stragglers, crashes.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
lab.command()(environments)
lab.command()(check)
lab.command()(calibrate)
lab.command()(bench)
lab.command()(soak)
lab.command()(flood)
lab.command()(replicas)
lab.command()(pauses)
lab.command()(kill)
lab.command()(restart)
lab.command()(cut)
lab.command()(busy)
lab.command()(returns)
lab.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(run)

__all__ = ["lab"]
