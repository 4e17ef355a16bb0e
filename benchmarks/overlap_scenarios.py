"""What ``weft bench overlap`` measures, and how long it takes over it.  Pure; no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

RATIOS = (0.3, 0.7, 1.0, 1.3, 2.0)
MODELS = ("transformer", "resnet", "mlp")
CONTENDERS = ("alone", "ddp", "ddp_best", "fsdp2", "fsdp2_async", "dear", "weft", "weft_eager")
GROWTH_CONTENDERS = (*CONTENDERS, "ddp_1mb", "weft_1mb", "weft_25mb")


@dataclass(frozen=True, slots=True)
class Timed:
    """Size of the timed device's model."""

    num_parameters: int = 12_000_000
    num_layers: int = 24
    compute_s: float = 1.2


@dataclass(frozen=True, slots=True)
class Effort:
    """How often everything is repeated."""

    num_warmup_steps: int = 3
    # A contender that tunes itself is given this many steps for it.
    num_tuning_steps: int = 60
    num_rounds: int = 4
    num_steps_per_round: int = 3
    num_sweep_steps: int = 2
    num_calibration_steps: int = 4

    @property
    def num_timed_steps(self) -> int:
        """Steps of each contender in the interleaved rounds; one a round only fills the pipeline."""
        return self.num_rounds * (self.num_steps_per_round + 1)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row: a model on some hosts at one network/compute ratio."""

    model: str
    num_hosts: int
    ratio: float
    contenders: tuple[str, ...]
    effort: Effort
    timed: Timed | None = None

    @property
    def label(self) -> str:
        return f"{self.model}, {self.num_hosts} hosts, ratio {self.ratio:g}"

    def calibration(self) -> Scenario:
        """The same workers alone, to learn how long the compute takes."""
        effort = replace(self.effort, num_rounds=1, num_steps_per_round=self.effort.num_calibration_steps)
        return replace(self, contenders=("alone",), effort=effort)

    def memory(self, contender: str) -> Scenario:
        """One contender in processes of its own, to see how much memory it takes."""
        effort = replace(self.effort, num_tuning_steps=8, num_rounds=1)
        return replace(self, contenders=(contender,), effort=effort)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def scenario_from_json(data: dict[str, Any]) -> Scenario:
    """The inverse of ``Scenario.as_json``, for the worker's side of the process border."""
    timed = None if data["timed"] is None else Timed(**data["timed"])
    return Scenario(
        **{
            **data,
            "contenders": tuple(data["contenders"]),
            "effort": Effort(**data["effort"]),
            "timed": timed,
        }
    )


def full_run() -> list[Scenario]:
    """Three models at five ratios on two hosts, then 2, 4 and 8 hosts with emulated compute.  Under an hour."""
    real = [Scenario(model, 2, ratio, CONTENDERS, Effort()) for model in MODELS for ratio in RATIOS]
    return real + [
        Scenario("timed", num_hosts, 1.0, GROWTH_CONTENDERS, Effort(num_rounds=3), Timed()) for num_hosts in (2, 4, 8)
    ]


def quick_run() -> list[Scenario]:
    """One model at two ratios and one row of four emulated hosts.  Under five minutes."""
    effort = Effort(num_warmup_steps=2, num_tuning_steps=20, num_rounds=2, num_steps_per_round=2, num_sweep_steps=1)
    small = Timed(num_parameters=6_000_000, num_layers=12, compute_s=0.5)
    return [
        Scenario("mlp", 2, 0.3, CONTENDERS, effort),
        Scenario("mlp", 2, 1.0, CONTENDERS, effort),
        Scenario("timed", 4, 1.0, CONTENDERS, effort, small),
    ]
