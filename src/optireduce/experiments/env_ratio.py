"""What a twice longer tail costs: the step time at tail3 over that at tail1.5, by system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean, stdev

from ..lab import Lab
from ..page.figure import Figure, Series
from ..page.parts import Rows, Verdict
from ..trials.allreduce.plan import SYSTEMS
from ..trials.training.outcome import Outcome, Step
from ..trials.training.plan import TrainingPlan
from .lab_runs import RATE, Network
from .study import Advance, Findings, Settings, Study

_SYSTEMS = ("gloo", "papers", "optireduce")
_ENVIRONMENTS = ("tail1.5", "tail3")
_PAPER = {"gloo": 1.21, "papers": 1.01, "optireduce": 1.01}  # GPT-2: 2.66 / 2.20 and 1.41 / 1.39 seconds
_MOST = 1.05
_STEPS = 120
_SEEDS = 2

Outcomes = Mapping[tuple[str, str], list[Outcome]]  # by system and environment


def run(settings: Settings, advance: Advance) -> Findings:
    """The same training in both environments, seed by seed."""
    outcomes: dict[tuple[str, str], list[Outcome]] = {}
    with Lab(hosts=_hosts(settings), rate=RATE) as lab:
        network = Network(lab, _ENVIRONMENTS)
        for seed in range(1, _seeds(settings) + 1):
            for environment in _ENVIRONMENTS:
                for system in _systems(settings):
                    found = _train(network, environment, system, seed, settings, advance)
                    outcomes.setdefault((system, environment), []).append(found)
    return Findings(
        tables=[_table(outcomes, _systems(settings))],
        figures=[_figure(outcomes, settings)],
        verdicts=[_verdict(system, outcomes) for system in _systems(settings)],
        data={
            f"{system} {environment}": [asdict(outcome) for outcome in found]
            for (system, environment), found in outcomes.items()
        },
        notes=(
            f"{_seeds(settings)} run(s) of {_steps(settings)} steps in each environment, {_hosts(settings)} "
            f"hosts, links of {RATE}. Both environments carry the same foreign traffic on average, in bursts "
            "of other length.",
            *network.notes.values(),
        ),
    )


def _train(
    network: Network, environment: str, system: str, seed: int, settings: Settings, advance: Advance
) -> Outcome:
    def tell(step: Step) -> None:
        advance(f"{environment} {system} seed {seed}: {step.seconds:.2f} s/step", 1)

    steps = _steps(settings)
    plan = TrainingPlan(system, steps, seed=seed, evaluate_every=steps, settings=SYSTEMS[system].settings)
    return network.train(environment, plan, tell)


def _ratios(system: str, outcomes: Outcomes) -> list[float]:
    """Of each seed, the mean step at tail3 over that at tail1.5."""
    shorter, longer = (outcomes[system, environment] for environment in _ENVIRONMENTS)
    return [after.mean_step() / before.mean_step() for before, after in zip(shorter, longer, strict=True)]


def _table(outcomes: Outcomes, systems: Sequence[str]) -> Rows:
    header = ("system", *(f"step at {name}" for name in _ENVIRONMENTS), "ratio", "of each run", "paper")
    lines = []
    for system in systems:
        means = [fmean(o.mean_step() for o in outcomes[system, name]) for name in _ENVIRONMENTS]
        ratios = _ratios(system, outcomes)
        lines.append(
            (
                system,
                *(f"{mean * 1e3:.0f} ms" for mean in means),
                f"{means[1] / means[0]:.2f}",
                ", ".join(f"{ratio:.2f}" for ratio in ratios),
                f"{_PAPER[system]:.2f}",
            )
        )
    return Rows("Mean step time", header, lines)


def _figure(outcomes: Outcomes, settings: Settings) -> Figure:
    bars = []
    for system in _systems(settings):
        means = [[o.mean_step() for o in outcomes[system, name]] for name in _ENVIRONMENTS]
        bars.append(
            Series(
                system,
                list(range(len(_ENVIRONMENTS))),
                [fmean(values) for values in means],
                low=[min(values) for values in means],
                high=[max(values) for values in means],
            )
        )
    return Figure(
        "env-ratio",
        "Mean step time where Gloo's P99/P50 is 1.5 and 3",
        "environment",
        "seconds a step",
        bars,
        kind="bars",
        categories=_ENVIRONMENTS,
        caption=f"{_seeds(settings)} run(s) of {_steps(settings)} steps each; lines: lowest and highest run.",
    )


def _verdict(system: str, outcomes: Outcomes) -> Verdict:
    ratios = _ratios(system, outcomes)
    spread = f" ± {stdev(ratios):.2f}" if len(ratios) > 1 else ""
    found = fmean(ratios)
    return Verdict(
        f"{system}: step time at tail3 over tail1.5",
        f"{_PAPER[system]:.2f}",
        f"{found:.2f}{spread}",
        found > _MOST if system == "gloo" else found <= _MOST,
    )


def _systems(settings: Settings) -> Sequence[str]:
    return (_SYSTEMS[0], _SYSTEMS[-1]) if settings.quick else _SYSTEMS


def _hosts(settings: Settings) -> int:
    return settings.hosts[0] if settings.hosts else 2 if settings.quick else 4


def _seeds(settings: Settings) -> int:
    return settings.seeds or (1 if settings.quick else _SEEDS)


def _steps(settings: Settings) -> int:
    return 4 if settings.quick else _STEPS


def _units(settings: Settings) -> float:
    return len(_ENVIRONMENTS) * len(_systems(settings)) * _seeds(settings) * _steps(settings)


STUDY = Study(
    name="env-ratio",
    title="What a longer tail costs",
    question="A twice longer tail costs OptiReduce 1 % of a step in the paper (GPT-2), and Gloo's ring 21 %.",
    needs_lab=True,
    units=_units,
    run=run,
)
