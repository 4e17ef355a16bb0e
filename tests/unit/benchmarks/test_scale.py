"""The scale benchmark, on a small cluster: what it claims to measure is there to be measured."""

from __future__ import annotations

from pathlib import Path

from benchmarks import scale, scale_figure


def test_every_simulated_worker_reports_to_a_real_controller(tmp_path: Path) -> None:
    row = scale.measured(scale.Load(num_nodes=2, num_workers=16, num_jobs=3), seconds=5.0)
    assert row["reports_per_s"] > 0
    assert row["num_requests"] >= scale.NUM_CLIENTS
    document = {
        "rows": [row],
        "decisions": [scale.decision(num_nodes=2, num_jobs=3)],
        "date": "2026-01-01",
        "machine": {"cores": 1},
    }
    assert "| 2 | 16 | 3 |" in scale.tables(document)
    scale_figure.draw(document, tmp_path / "scale.png")
    assert (tmp_path / "scale.png").exists()
