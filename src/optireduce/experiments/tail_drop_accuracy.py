"""The poster's second plot: what becomes of accuracy when the slowest packets of every operation are lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import hypot

from ..page.figure import Figure, Series
from ..page.parts import Rows, Verdict
from .sim_numbers import Summary, spread_series
from .sim_training import CARRY, EXACT, PAPERS, Outcome, Place, above, losses, lost_share, scores, train_all
from .study import Advance, Findings, Settings, Study

_DIGITS, _BYTES = "digits", "bytes"
_COMPARED = (PAPERS, CARRY)
_FLAT_SCORE = 0.01  # at most so much less of the answers is right: no worse
_FLAT_UP_TO = 0.05  # the papers drop far less; this is where we ask
_PATTERN = "tail"


@dataclass(frozen=True)
class _Part:
    """One task."""

    task: str
    shares: Sequence[float]
    seeds: int
    steps: int

    @property
    def places(self) -> list[Place]:
        dropped = [Place(self.task, name, _PATTERN, share) for share in self.shares for name in _COMPARED]
        return [Place(self.task, EXACT), *dropped]

    @property
    def units(self) -> float:
        """Steps, in those of digits: one of bytes takes as long as some thirty."""
        return float(len(self.places) * self.seeds * self.steps * _STEP_COST[self.task])


_STEP_COST = {_DIGITS: 1, _BYTES: 30}


def _plan(settings: Settings) -> list[_Part]:
    if settings.quick:
        return [_Part(_DIGITS, (0.05, 0.2), settings.seeds or 1, steps=60)]
    return [
        _Part(_DIGITS, (0.01, 0.02, 0.05, 0.1, 0.2), settings.seeds or 3, steps=600),
        _Part(_BYTES, (0.05, 0.2), settings.seeds or 2, steps=100),
    ]


def run(settings: Settings, advance: Advance) -> Findings:
    """Both tasks."""
    parts = _plan(settings)
    outcomes = []
    for part in parts:
        cost = _STEP_COST[part.task]
        outcomes += train_all(part.places, part.seeds, part.steps, _scaled(advance, cost))
    return _findings(parts, outcomes)


def _scaled(advance: Advance, cost: int) -> Advance:
    def scaled(note: str, done: float = 0) -> None:
        advance(note, done * cost)

    return scaled


def _findings(parts: Sequence[_Part], outcomes: Sequence[Outcome]) -> Findings:
    digits = parts[0]
    return Findings(
        tables=[_table(part, outcomes) for part in parts],
        figures=[
            _figure(digits, "accuracy", "share of right answers", lambda place: scores(outcomes, place)),
            *(_figure(part, "loss", "final loss", lambda place: losses(outcomes, place)) for part in parts),
        ],
        verdicts=[
            *(_score_verdict(digits, outcomes, strategy) for strategy in _COMPARED),
            *(_loss_verdict(part, outcomes) for part in parts),
        ],
        data={
            "parts": [asdict(part) for part in parts],
            "training": [asdict(outcome) for outcome in outcomes],
        },
        notes=(
            "8 virtual replicas, the protocol in virtual time. Of what every rank sends to every other in "
            "every operation, the last share of packets never comes before the deadline and cannot be "
            "repaired before it: in both stages with the papers' transport, of contributions only with "
            "carry, which sends a decision until it arrives. The first operations are exact.",
            *(
                f"{part.task}: {part.steps} steps, {part.seeds} seeds; spreads are their standard deviations."
                for part in parts
            ),
            "digits is tested with 360 images, the same for all seeds, and models that converge miss nearly "
            "the same 11 of them: equal accuracies come from that, and a spread of 0 is no precision. Look "
            "at the loss.",
            "A shard of digits has 19 packets. Where 1 or 2 % are dropped, pairs of ranks lose their last "
            "one now and then, each at other times, and the papers' replicas differ; at 5 % nearly all lose "
            "the same one. That is why less can harm the papers' transport more.",
            "Papers: no repair, zeros where nothing came, packets in the order of memory. Carry: packets in "
            "another order each time, an excluded contribution is added to the next one, and all replicas "
            "get the same decisions.",
        ),
    )


def _score_verdict(part: _Part, outcomes: Sequence[Outcome], strategy: str) -> Verdict:
    exact = scores(outcomes, Place(part.task, EXACT)).mean
    found = {
        share: scores(outcomes, Place(part.task, strategy, _PATTERN, share)).mean for share in part.shares
    }
    small = [score for share, score in found.items() if share <= _FLAT_UP_TO]
    return Verdict(
        claim=f"Dropping the slowest packets leaves accuracy as it is, {part.task}, transport: {strategy}",
        paper="accuracy holds while little of the tail is dropped (poster: plot without figures)",
        ours=f"exact {exact:.2%}; "
        + ", ".join(f"{share:.0%}: {score:.2%}" for share, score in found.items()),
        holds=exact - min(small) <= _FLAT_SCORE,
        note=f"Holds means: at most {_FLAT_SCORE:.0%} of the answers lost up to {_FLAT_UP_TO:.0%} dropped. "
        "The poster trained ResNet50 on ImageNet with 128 nodes; this is a small model with 8 virtual ones.",
    )


def _loss_verdict(part: _Part, outcomes: Sequence[Outcome]) -> Verdict:
    most = max(part.shares)
    exact = Place(part.task, EXACT)
    papers, carry = (above(outcomes, Place(part.task, name, _PATTERN, most), exact) for name in _COMPARED)
    return Verdict(
        claim="Carried contributions keep the final loss nearer to the exact run's than the papers' "
        f"transport, {part.task}, {most:.0%} dropped",
        paper="no figure: this is ours to show",
        ours=f"papers {_with_error(papers)}, carry {_with_error(carry)} (± s.e.)",
        holds=papers.mean - carry.mean > 2 * hypot(papers.error, carry.error),
        note="Holds means: by more than twice the standard error of the difference.",
    )


def _with_error(found: Summary) -> str:
    return f"{found.mean:+.4f} ± {found.error:.4f}"


def _table(part: _Part, outcomes: Sequence[Outcome]) -> Rows:
    header = ["dropped", "transport", "final loss", "minus exact (± s.e.)", "accuracy", "really lost"]
    return Rows(f"Tail-drop and {part.task}", header, [_row(outcomes, place) for place in part.places])


def _row(outcomes: Sequence[Outcome], place: Place) -> list[str]:
    loss = losses(outcomes, place)
    return [
        f"{place.share:.0%}",
        place.strategy,
        f"{loss.mean:.4f} ± {loss.spread:.4f}",
        _with_error(above(outcomes, place, Place(place.task, EXACT))),
        _score_text(outcomes, place),
        f"{lost_share(outcomes, place):.2%}",
    ]


def _score_text(outcomes: Sequence[Outcome], place: Place) -> str:
    if place.task != _DIGITS:
        return "-"
    score = scores(outcomes, place)
    return f"{score.mean:.2%} ± {score.spread:.2%}"


def _figure(part: _Part, what: str, label: str, value: Callable[[Place], Summary]) -> Figure:
    return Figure(
        f"tail-drop-{part.task}-{what}",
        f"Tail-drop against {what}, {part.task}",
        "slowest packets dropped, %",
        label,
        [_series(part, strategy, value) for strategy in _COMPARED],
        caption=f"8 replicas, {part.steps} steps; mean and standard deviation of {part.seeds} seeds. Nothing "
        "dropped is the exact mean.",
    )


def _series(part: _Part, strategy: str, value: Callable[[Place], Summary]) -> Series:
    """From the exact run on, which is the same for all."""
    places = [Place(part.task, EXACT)] + [
        Place(part.task, strategy, _PATTERN, share) for share in part.shares
    ]
    return spread_series(
        strategy, [100 * place.share for place in places], [value(place) for place in places]
    )


STUDY = Study(
    name="tail-drop-accuracy",
    title="Tail-drop against accuracy",
    question="The poster drops the slowest packets of each operation and shows that accuracy holds. Here the "
    "same is done to two small tasks, with the papers' transport and with carried contributions.",
    needs_lab=False,
    units=lambda settings: sum(part.units for part in _plan(settings)),
    run=run,
)
