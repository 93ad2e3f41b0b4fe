"""The benchmark end to end, over Gloo (always there) and, where the core is built, over both backends."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from optireduce.cli import main
from optireduce.cli.bench import command
from optireduce.cli.bench.raw_udp import DATAGRAM_BYTES, _window, measure_flow
from optireduce.cli.bench.worker import pattern

needs_core = pytest.mark.skipif(
    find_spec("optireduce._core") is None, reason="the compiled core is not built"
)


def run_bench(folder: Path, *arguments: str) -> dict[str, object]:
    path = folder / "bench.json"
    assert main(["bench", "--json", str(path), "--warmup", "1", "--rounds", "2", *arguments]) == 0
    document: dict[str, object] = json.loads(path.read_text())
    return document


def test_gloo_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What UDP carries here is for another test: on a busy machine it may be less than Gloo carries.
    monkeypatch.setattr(command, "measure_flow", lambda seconds: 1e12)
    document = run_bench(tmp_path, "--backends", "gloo", "--nproc", "2", "--sizes", "4K,100", "--iters", "3")
    results = document["results"]
    assert isinstance(results, list)
    assert [(r["size"], r["wrong"], r["iterations"]) for r in results] == [(4096, 0, 6), (100, 0, 6)]
    for result in results:
        assert 0 < result["p50"] <= result["p99"]
        assert result["cpu_seconds_per_gb"] > 0
        assert result["busbw"] == pytest.approx(result["algbw"])
        assert 0 < result["limit_share"] < 1
    blocks = document["blocks"]
    assert isinstance(blocks, list)
    assert [(b["nproc"], b["size"], b["round_index"], len(b["seconds"])) for b in blocks] == [
        (2, 4096, 0, 3), (2, 4096, 1, 3), (2, 100, 0, 3), (2, 100, 1, 3),
    ]  # fmt: skip
    assert {"date", "machine", "versions", "options", "raw_udp_bytes_per_second"} <= document.keys()
    table = capsys.readouterr().out
    for heading in (
        "2 ranks",
        "count",
        "redop",
        "algbw",
        "busbw",
        "#wrong",
        "p99",
        "CPU s/GB",
        "of raw UDP",
        "drops",
    ):
        assert heading in table


@needs_core
def test_both_backends_side_by_side(tmp_path: Path) -> None:
    document = run_bench(
        tmp_path, "--nproc", "3", "--sizes", "300K", "--iters", "3", "--dtype", "bfloat16", "--rmem", "208K"
    )
    results = document["results"]
    assert isinstance(results, list)
    assert [(r["backend"], r["wrong"]) for r in results] == [("gloo", 0), ("optireduce", 0)]
    assert results[1]["ratio"]["lowest"] <= results[1]["ratio"]["median"] <= results[1]["ratio"]["highest"]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_the_pattern_sums_exactly_in_every_type(dtype: str) -> None:
    """Otherwise #wrong would count rounding, or miss a rank that was added twice."""
    parts = [pattern([rank], 1000, dtype) for rank in range(36)]
    exact = torch.stack([part.double() for part in parts]).sum(0)
    assert torch.equal(sum(parts[1:], parts[0]).double(), exact)
    assert torch.equal(pattern(range(36), 1000, dtype).double(), exact)
    assert not torch.equal(parts[0], parts[1])


def test_the_pattern_does_not_repeat_within_a_packet_or_chunk() -> None:
    values = pattern([0], 200_000, "float32")
    assert all(
        not torch.equal(values[:100], values[shift : shift + 100]) for shift in (1, 15, 362, 16_384, 65_536)
    )


def test_raw_udp_flow_loses_nothing() -> None:
    """A lost datagram would leave the sender without a credit, and the measurement would fail."""
    assert measure_flow(0.05) > 0


def test_the_window_fits_the_buffer() -> None:
    assert _window(8 << 20) == 16
    assert _window(425_984) * DATAGRAM_BYTES < 425_984
    assert _window(1) == 4
