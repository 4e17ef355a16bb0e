"""What ``weft bench overlap`` measures, and how long it takes.  Pure; no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

# Of the model with the shortest step; the others are measured where compute and network take equally long.
RATIOS = (1.0, 0.3, 2.0)
MODELS = ("transformer", "resnet", "mlp")
CONTENDERS = (
    *("alone", "ddp", "ddp_best", "ddp_list", "ddp_plan", "fsdp2", "fsdp2_async"),
    *("dear", "weft", "weft_eager"),
)
# Where compute and network differ, only the contenders that gain from it: FSDP2 alone takes minutes a row on gloo.
FEW = ("alone", "ddp", "ddp_best", "dear", "weft", "weft_eager")
# About twice as slow as the others: one timed step a round shows that as well as several.
SLOW = frozenset({"fsdp2", "fsdp2_async"})
_SLOWNESS = 2
TUNED = frozenset({"weft", "weft_eager"})
FULL_MINUTES = 30.0
MANY_WORKERS = 16
MEMORY_CONTENDERS = ("ddp", "weft")
QUICK_MINUTES = 4.5
# Seconds of a step alone, to estimate how long a run takes; measured on two cores of an AMD EPYC.
_ALONE_S = {"transformer": 0.8, "resnet": 0.19, "mlp": 0.27, "tiny": 0.01}
_START_S = 6.0
_START_S_PER_WORKER = 1.0


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
    # By how much a real model's layers were scaled; its default buckets are scaled by the same factor.
    bucket_scale: float = 1.0

    def each_layer(self) -> Sequence[tuple[int, float, float]]:
        """``layers``, or equal ones whose backward takes twice as long as their forward."""
        forward_s = self.compute_s / 3 / self.num_layers
        return self.layers or [(self.num_parameters // self.num_layers, forward_s, 2 * forward_s)] * self.num_layers


@dataclass(frozen=True, slots=True)
class Effort:
    """How often everything is repeated: as many rounds as fit into ``round_budget_s``, between two limits."""

    num_warmup_steps: int = 1
    # At most this many more for a contender that tunes itself.
    num_tuning_steps: int = 60
    min_rounds: int = 3
    max_rounds: int = 12
    round_budget_s: float = 100.0
    num_steps_per_round: int = 1
    num_sweep_steps: int = 1
    num_calibration_steps: int = 5
    ddp_sweep_mb: tuple[float, ...] = (1.0, 4.0, 10.0, 25.0)
    dear_sweep_mb: tuple[float, ...] = (2.0, 8.0, 25.0)

    def steps_per_round(self, contender: str) -> int:
        """Timed steps of a contender in each round."""
        return 1 if contender in SLOW else self.num_steps_per_round

    def rounds_in_budget(self, round_s: float) -> int:
        """How many rounds of that length are made."""
        return max(self.min_rounds, min(self.max_rounds, int(self.round_budget_s / max(round_s, 1e-9) + 1e-6)))


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
    part: str = "models"
    """The part of the run that it belongs to, for ``--only``: models or hosts."""

    @property
    def key(self) -> str:
        """The name of its row."""
        workers = f" x {self.workers_per_host}" if self.workers_per_host > 1 else ""
        return f"{self.model} {self.num_hosts} hosts{workers} {self.ratio:g}"

    @property
    def label(self) -> str:
        hosts = f"{self.num_hosts} hosts"
        if self.workers_per_host > 1:
            hosts += f" of {self.workers_per_host} workers"
        return f"{self.model}, {hosts}, ratio {self.ratio:g}"

    def calibration(self) -> Scenario:
        """The same workers alone, to learn how long the compute takes."""
        num_steps = self.effort.num_calibration_steps
        effort = replace(self.effort, num_warmup_steps=3, min_rounds=1, max_rounds=1, num_steps_per_round=num_steps)
        return replace(self, contenders=("alone",), effort=effort)

    @property
    def layout(self) -> tuple[str, int, int]:
        return self.model, self.num_hosts, self.workers_per_host

    @property
    def shows_memory(self) -> bool:
        """Whether its memory is measured too: last, and as long as there is time."""
        return self.timed is None

    @property
    def needs_memory(self) -> bool:
        """Where the row is about what many workers need, it is not complete without their memory."""
        return self.num_hosts * self.workers_per_host >= MANY_WORKERS

    def memory(self, contender: str) -> Scenario:
        """One contender in processes of its own, to see how much memory it takes."""
        return replace(self, contenders=(contender,), effort=replace(self.effort, num_tuning_steps=12))

    @property
    def fixed_s(self) -> float:
        """About how long everything but the rounds takes."""
        return self._steps_s + (self.memory_s if self.needs_memory else 0.0)

    @property
    def memory_s(self) -> float:
        """About how long it takes to measure memory."""
        return sum(self.memory(name)._steps_s for name in MEMORY_CONTENDERS)

    @property
    def _steps_s(self) -> float:
        """About how long it takes to start, warm up, tune, and choose bucket sizes."""
        effort, step_s = self.effort, self._step_s
        swept = {"ddp_best": effort.ddp_sweep_mb, "dear": effort.dear_sweep_mb}
        sweeps = sum(len(sizes) for name, sizes in swept.items() if name in self.contenders and len(sizes) > 1)
        num_steps = effort.num_warmup_steps * sum(map(_slowness, self.contenders))
        num_steps += sweeps * (2 + effort.num_sweep_steps)
        num_steps += sum(effort.num_tuning_steps for name in self.contenders if name in TUNED)
        start_s = _START_S + _START_S_PER_WORKER * self.num_hosts * self.workers_per_host
        # Real models are started once more, to learn how long their compute takes.
        return start_s + num_steps * step_s if self.timed is not None else 2 * start_s + (8 + num_steps) * step_s

    @property
    def round_s(self) -> float:
        """About how long one round takes."""
        steps = sum((self.effort.steps_per_round(name) + 1) * _slowness(name) for name in self.contenders)
        return steps * self._step_s

    @property
    def estimated_s(self) -> float:
        """About how long the row takes."""
        return self.fixed_s + self.effort.rounds_in_budget(self.round_s) * self.round_s

    @property
    def least_s(self) -> float:
        """About how long it takes with as few rounds as possible."""
        return self.fixed_s + self.effort.min_rounds * self.round_s

    @property
    def _step_s(self) -> float:
        alone_s = self.timed.compute_s if self.timed is not None else _ALONE_S[self.model]
        return alone_s * (1.0 + 0.6 * self.ratio)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def _slowness(contender: str) -> int:
    return _SLOWNESS if contender in SLOW else 1


def scenario_from_json(data: dict[str, Any]) -> Scenario:
    """The inverse of ``Scenario.as_json``, for the worker's side of the process border."""
    timed = None
    if data["timed"] is not None:
        timed = Timed(**{**data["timed"], "layers": tuple(map(tuple, data["timed"]["layers"]))})
    effort: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in data["effort"].items()
    }
    return Scenario(
        **{
            **data,
            "contenders": tuple(data["contenders"]),
            "effort": Effort(**effort),
            "timed": timed,
        }
    )


def fitting(scenarios: Sequence[Scenario], left_s: float) -> list[Scenario]:
    """Those that fit into ``left_s`` with as few rounds as possible, taken in order."""
    found = []
    for scenario in scenarios:
        if scenario.least_s <= left_s:
            found.append(scenario)
            left_s -= scenario.least_s
    return found


def within(scenarios: Sequence[Scenario], left_s: float) -> Scenario:
    """The first of the scenarios, with as many rounds as fit if all of them have to end within ``left_s``.

    If there is too little time, the rounds of all scenarios are cut in proportion; never below ``min_rounds``.
    """
    first = scenarios[0]
    spare_s = left_s - sum(scenario.least_s for scenario in scenarios)
    more_s = sum(scenario.estimated_s - scenario.least_s for scenario in scenarios)
    share = max(0.0, min(1.0, spare_s / max(more_s, 1e-9)))
    budget_s = first.effort.min_rounds * first.round_s + share * (first.estimated_s - first.least_s)
    return replace(first, effort=replace(first.effort, round_budget_s=min(first.effort.round_budget_s, budget_s)))


def full_run() -> list[Scenario]:
    """Three models on 2 hosts, several workers per host, and one model at other ratios.

    In order of value, for a run with a limit.  More hosts are in the rows of popular models.
    """
    long = Effort(round_budget_s=110.0)
    # Short steps differ by more from one to the next, and more of them fit into a minute.
    short = Effort(round_budget_s=150.0, min_rounds=5, max_rounds=20, num_steps_per_round=2, num_sweep_steps=2)
    models = [
        Scenario(model, 2, 1.0, contenders_at(model, 1.0), long if model == "transformer" else short)
        for model in MODELS
    ]
    others = [Scenario("mlp", 2, ratio, contenders_at("mlp", ratio), short) for ratio in RATIOS if ratio != 1.0]
    return [*models, *shared_hosts(Effort(round_budget_s=60.0, ddp_sweep_mb=(1.0, 4.0))), *others]


# Workers per host and link rate of two hosts, as a user measured them.
SHARED_HOSTS = ((1, 134e6), (2, 200e6), (4, 234e6))
SHARED_CONTENDERS = ("alone", "ddp", "ddp_best", "ddp_plan", "weft")


def shared_hosts(effort: Effort) -> list[Scenario]:
    """Several workers per host: 20 MB in 16 layers on two hosts, and sixteen workers on four."""
    timed = Timed(num_layers=16)
    # With two hosts a link carries half of the model each way, in each of two phases.
    full_s = timed.num_parameters * 32 / timed.compute_s
    rows = [
        Scenario("timed", 2, round(full_s / rate, 3), SHARED_CONTENDERS, effort, timed, workers, part="hosts")
        for workers, rate in SHARED_HOSTS
    ]
    # Half as large and half as long: with eight workers per core, the row shows that they run and what they need.
    half = replace(timed, num_parameters=timed.num_parameters // 2, compute_s=timed.compute_s / 2)
    return [*rows, Scenario("timed", 4, 1.0, SHARED_CONTENDERS, effort, half, 4, part="hosts")]


def contenders_at(model: str, ratio: float) -> tuple[str, ...]:
    """All contenders where the network takes about as long as compute.

    Eager tunes itself for another 60 steps: only the model with the shortest step has it.
    """
    if ratio != 1.0:
        return FEW
    return CONTENDERS if model == "mlp" else tuple(name for name in CONTENDERS if name != "weft_eager")


def quick_run() -> list[Scenario]:
    """One model at two ratios and one row of four emulated hosts."""
    effort = Effort(
        round_budget_s=25.0,
        min_rounds=2,
        num_steps_per_round=2,
        ddp_sweep_mb=(1.0, 4.0),
        dear_sweep_mb=(4.0, 25.0),
    )
    small = Timed(num_parameters=4_000_000, num_layers=12, compute_s=0.3)
    # Eager would tune itself for another 60 steps, which is time for a row of another benchmark.
    peers = ("alone", "ddp", "ddp_best", "fsdp2", "dear", "weft")
    return [
        Scenario("mlp", 2, 1.0, peers, effort),
        Scenario("mlp", 2, 0.3, ("alone", "ddp", "weft"), effort),
        Scenario("timed", 4, 1.0, ("alone", "ddp", "ddp_best", "dear", "weft"), effort, small, part="hosts"),
    ]


def tiny_run(contenders: Sequence[str]) -> list[Scenario]:
    """The whole benchmark with almost no work, to check that it runs."""
    effort = Effort(num_tuning_steps=0, min_rounds=2, max_rounds=2, ddp_sweep_mb=(1.0, 25.0), dear_sweep_mb=(25.0,))
    return [Scenario("tiny", 2, 1.0, tuple(contenders), effort)]
