"""What ``weft bench overlap`` measures, and how long it takes over it.  Pure; no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

RATIOS = (0.3, 0.7, 1.0, 1.3, 2.0)
MODELS = ("transformer", "resnet", "mlp")
CONTENDERS = ("alone", "ddp", "ddp_best", "fsdp2", "fsdp2_async", "dear", "weft", "weft_eager")
BUCKET_CONTENDERS = ("ddp_1mb", "weft_1mb", "weft_25mb")
# One size for all buckets, without tuning: what the tuned plan is held against.
SWEEP_CONTENDERS = tuple(f"weft_{size}mb" for size in (1, 2, 4, 8, 16, 25))
# Several times slower than everybody else: one timed step a round shows that as well as several.
SLOW = frozenset({"fsdp2", "fsdp2_async"})


@dataclass(frozen=True, slots=True)
class Timed:
    """Size of the timed device's model.

    The same for every number of hosts, so that rows compare.  Communication still costs real core time: this
    much a step leaves eight hosts on two cores enough of it.  (With steps twice as long, and links half as fast, eight
    hosts reach the same share of the bound.)
    """

    num_parameters: int = 5_000_000
    num_layers: int = 24
    compute_s: float = 1.2
    # Elements, forward and backward seconds of each layer; equal layers when empty.
    layers: tuple[tuple[int, float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Effort:
    """How often everything is repeated."""

    num_warmup_steps: int = 2
    # At most this many more for a contender that tunes itself.
    num_tuning_steps: int = 60
    num_rounds: int = 3
    num_steps_per_round: int = 2
    num_sweep_steps: int = 1
    num_calibration_steps: int = 5

    def steps_per_round(self, contender: str) -> int:
        """Timed steps of a contender in each round."""
        return 1 if contender in SLOW else self.num_steps_per_round

    def num_steps(self, contender: str) -> int:
        """Steps of a contender without its tuning; one a round only fills the pipeline."""
        return self.num_warmup_steps + self.num_rounds * (self.steps_per_round(contender) + 1)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row: a model on some hosts at one network/compute ratio."""

    model: str
    num_hosts: int
    ratio: float
    contenders: tuple[str, ...]
    effort: Effort
    timed: Timed | None = None
    workers_per_host: int = 1

    @property
    def label(self) -> str:
        hosts = f"{self.num_hosts} hosts"
        if self.workers_per_host > 1:
            hosts += f" of {self.workers_per_host} workers"
        return f"{self.model}, {hosts}, ratio {self.ratio:g}"

    def calibration(self) -> Scenario:
        """The same workers alone, to learn how long the compute takes."""
        effort = replace(
            self.effort, num_warmup_steps=3, num_rounds=1, num_steps_per_round=self.effort.num_calibration_steps
        )
        return replace(self, contenders=("alone",), effort=effort)

    def memory(self, contender: str) -> Scenario:
        """One contender in processes of its own, to see how much memory it takes."""
        effort = replace(self.effort, num_tuning_steps=12, num_rounds=1)
        return replace(self, contenders=(contender,), effort=effort)

    @property
    def num_steps(self) -> int:
        """Steps reported as progress, for a bar that ends where it should."""
        return sum(self.effort.num_steps(contender) for contender in self.contenders)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def scenario_from_json(data: dict[str, Any]) -> Scenario:
    """The inverse of ``Scenario.as_json``, for the worker's side of the process border."""
    timed = None
    if data["timed"] is not None:
        timed = Timed(**{**data["timed"], "layers": tuple(map(tuple, data["timed"]["layers"]))})
    return Scenario(
        **{
            **data,
            "contenders": tuple(data["contenders"]),
            "effort": Effort(**data["effort"]),
            "timed": timed,
        }
    )


def contenders_at(ratio: float) -> tuple[str, ...]:
    """FSDP2 takes minutes a row on gloo: it is shown where the network matters most, its variant once."""
    left_out = {1.0: (), 1.3: ("fsdp2_async",)}.get(ratio, ("fsdp2", "fsdp2_async"))
    return tuple(name for name in CONTENDERS if name not in left_out)


def full_run() -> list[Scenario]:
    """Three models at five ratios on 2 hosts, then 2, 4 and 8 hosts with emulated compute, some shared."""
    effort = Effort(num_warmup_steps=1)
    real = [Scenario(model, 2, ratio, contenders_at(ratio), effort) for model in MODELS for ratio in RATIOS]
    # A model whose first and last layer are large, where no schedule reaches the bound: by how much, once.
    real.append(Scenario("vocabulary", 2, 1.3, contenders_at(0.3), effort))
    sweep = Scenario("transformer", 2, 1.0, ("alone", "ddp", "weft", *SWEEP_CONTENDERS), effort)
    growing = ("alone", "ddp", "ddp_best", "weft", *BUCKET_CONTENDERS)
    emulated = [Scenario("timed", num_hosts, 1.0, growing, effort, Timed()) for num_hosts in (2, 4, 8)]
    return [*real, sweep, *emulated, *shared_hosts(effort)]


def shared_hosts(effort: Effort) -> list[Scenario]:
    """Several workers per host, as a user measured them: 20 MB in 16 layers, links of 200 and 234 Mb/s."""
    timed = Timed(num_parameters=5_000_000, num_layers=16)
    contenders = ("alone", "ddp", "ddp_best", "weft", *BUCKET_CONTENDERS)
    # With two hosts a link carries half of the model each way, in each of two phases.
    ratio_at = {rate: timed.num_parameters * 32 / rate / timed.compute_s for rate in (200e6, 234e6)}
    rows = [(2, 2, ratio_at[200e6]), (2, 4, ratio_at[234e6]), (4, 4, 1.0)]
    return [
        Scenario("timed", hosts, round(ratio, 3), contenders, effort, timed, workers) for hosts, workers, ratio in rows
    ]


def quick_run() -> list[Scenario]:
    """One model at two ratios and one row of four emulated hosts.  Under five minutes."""
    effort = Effort(num_warmup_steps=1, num_rounds=2)
    small = Timed(num_parameters=4_000_000, num_layers=12, compute_s=0.3)
    contenders = tuple(name for name in CONTENDERS if name != "fsdp2_async")
    return [
        Scenario("mlp", 2, 0.3, contenders, effort),
        Scenario("mlp", 2, 1.0, contenders, effort),
        Scenario("timed", 4, 1.0, contenders, effort, small),
    ]


def tiny_run(contenders: Sequence[str]) -> list[Scenario]:
    """The whole way with almost no work in it, to see that it holds together."""
    effort = Effort(num_warmup_steps=1, num_tuning_steps=0, num_rounds=1, num_steps_per_round=1)
    return [Scenario("tiny", 2, 1.0, tuple(contenders), effort)]
