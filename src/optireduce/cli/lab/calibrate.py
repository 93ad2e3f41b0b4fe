"""`optireduce lab calibrate`: find the bursts that give Gloo a certain tail on this machine."""

from __future__ import annotations

from collections.abc import Callable

from rich.progress import Progress, TaskID

from ...lab import Lab, LabError
from ...trials.calibrated import Scope, remember
from ...trials.calibration import ITERATIONS, Calibration, Trial, find
from ...trials.ranks import RankFailed
from ..console import progress_bar, say
from ..errors import CommandFailed, UsageError
from .options import EnvironmentName, Hosts, Rate, Seed, Size, become_able, chosen_environment, chosen_size


def calibrate(
    environment: EnvironmentName = "tail3",
    hosts: Hosts = 4,
    rate: Rate = "200mbit",
    size: Size = "4M",
    seed: Seed = 1,
) -> None:
    """Try bursts of different lengths until the P99/P50 of Gloo's all-reduce is what the name says.

    Some minutes. The result is kept in the user's cache folder, and used by everything that uses the lab.
    """
    chosen = chosen_environment(environment)
    if chosen.tail is None:
        raise UsageError(
            f"environment = {environment!r} has nothing to calibrate: tail1.5, tail3 and tail5 have"
        )
    become_able()
    scope = Scope(hosts, rate, chosen_size(size, hosts))
    try:
        with Lab(hosts=hosts, rate=rate) as lab, progress_bar(redraws_itself=False) as progress:
            bar = progress.add_task(environment, total=ITERATIONS, note="starting")

            def tried(trial: Trial) -> None:
                say(f"bursts of {trial.on_ms:.0f} ms: Gloo's P99/P50 is {trial.ratio:.2f}")

            found = find(lab, chosen, scope.size, seed, teller(progress, bar), tried)
    except (LabError, RankFailed) as error:
        raise CommandFailed(str(error)) from error
    _tell(found, hosts)
    say(f"kept in {remember(found, scope)}")


def teller(progress: Progress, bar: TaskID) -> Callable[[str, int], None]:
    """Moves the bar with the operations of a trial, and back to its beginning with the first of the next."""

    def advance(note: str, operations: int) -> None:
        if progress.finished and operations:
            progress.reset(bar)
        progress.update(bar, advance=operations, note=note, refresh=True)

    return advance


def _tell(found: Calibration, hosts: int) -> None:
    environment = found.environment
    assert environment.bursts is not None
    got = f"Gloo's P99/P50 is {found.ratio:.2f} over {ITERATIONS} operations with {hosts} hosts"
    how = f"bursts of {environment.bursts.on_ms:.0f} ms, silences of {environment.bursts.off_ms:.0f} ms"
    if found.reached:
        say(f"[green]{environment.name}[/]: {got}: {how}")
    else:
        say(f"[red]{environment.name} could not be reached[/] in {len(found.trials)} trials; {got}: {how}")
