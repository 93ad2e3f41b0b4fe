"""All studies by name."""

from __future__ import annotations

from collections.abc import Mapping

from . import (
    early_timeout,
    env_ratio,
    grid_scale,
    hadamard_sweep,
    incast,
    mse_topology,
    tail_cdf,
    tail_drop_accuracy,
    tail_drop_speedup,
    tta,
)
from .study import Study

STUDIES: Mapping[str, Study] = {
    module.STUDY.name: module.STUDY
    for module in (
        tail_cdf,
        tail_drop_accuracy,
        tail_drop_speedup,
        tta,
        mse_topology,
        hadamard_sweep,
        early_timeout,
        incast,
        env_ratio,
        grid_scale,
    )
}
