"""The same numbers as DDP: several models, optimizers, and loops; then state dicts and plan changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from weft.overlap import Overlap, overlap
from weft.worker.gpu_check.models import MODELS, Model, Transformer

Row = dict[str, Any]
MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]

NUM_STEPS = 12
# With more than two workers, NCCL may add in a different order than DDP's all-reduce.
MAX_RELATIVE_DIFFERENCE = 1e-3

OPTIMIZERS: dict[str, MakeOptimizer] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3),
    "adamw fused": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True),
    "adafactor": lambda model: torch.optim.Adafactor(model.parameters(), lr=1e-2),
}


class Training:
    """One model, trained with DDP or with weft."""

    def __init__(
        self,
        make: Callable[[], Model],
        optimizer: MakeOptimizer,
        device: torch.device,
        overlapped: bool,
        **options: Any,
    ) -> None:
        torch.manual_seed(3)
        self.model = make().to(device)
        self.device = device
        self.handle: Overlap | None = None
        self._ddp: DistributedDataParallel | None = None
        self.optimizer = optimizer(self.model)
        if overlapped:
            self.handle = overlap(self.model, self.optimizer, **options)
        else:
            self._ddp = DistributedDataParallel(_Loss(self.model), find_unused_parameters=True)
        self._generator = torch.Generator().manual_seed(dist.get_rank())

    def step(self, *, clip: bool = False, accumulate: int = 1) -> torch.Tensor:
        self.optimizer.zero_grad()
        for _ in range(accumulate - 1):
            with (self._ddp or self.handle).no_sync():  # type: ignore[union-attr]
                self._loss().backward()  # type: ignore[no-untyped-call]
        loss = self._loss()
        loss.backward()  # type: ignore[no-untyped-call]
        if clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        self.optimizer.step()
        return loss.detach()

    def _loss(self) -> torch.Tensor:
        if self._ddp is not None:
            loss: torch.Tensor = self._ddp(self._generator, self.device)
            return loss
        return self.model.loss(self._generator, self.device)

    def values(self) -> dict[str, torch.Tensor]:
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def close(self) -> None:
        if self.handle is not None:
            self.handle.detach()


class _Loss(nn.Module):
    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, generator: torch.Generator, device: torch.device) -> torch.Tensor:
        return self.model.loss(generator, device)


def exactness(device: torch.device, quick: bool) -> Iterator[Row]:
    """One row per model, optimizer, and loop."""
    for model, make in MODELS.items():
        for name, optimizer in OPTIMIZERS.items():
            for loop, how in LOOPS.items() if name == "adamw" else [("plain", LOOPS["plain"])]:
                if quick and (model, name, loop) not in _QUICK:
                    continue
                options = {"bucket_bytes": 16 << 10, "exact_clipping": loop == "exact clipping"}
                yield {
                    "check": "exactness",
                    "case": f"{model}, {name}, {loop}",
                    # Without exact_clipping, norms are summed in a different order than DDP's.
                    **_compared(make, optimizer, device, how, to_rounding=loop == "clipping", **options),
                }


LOOPS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipping": {"clip": True},
    "exact clipping": {"clip": True},
    "accumulation": {"accumulate": 2},
}
_QUICK = {
    ("transformer", "adamw", "clipping"),
    ("transformer", "adamw", "exact clipping"),
    ("recurrent", "sgd", "plain"),
}


def plans_and_state(device: torch.device, quick: bool) -> Iterator[Row]:
    """Tuning moves parameters and state between plans; state dicts equal DDP's."""
    num_steps = 12 if quick else 70
    yield {
        "check": "plan changes",
        "case": f"transformer, adamw, tuned over {num_steps} steps",
        **_compared(Transformer, OPTIMIZERS["adamw"], device, {}, num_steps=num_steps),
    }
    for name in ("adamw", "adamw fused"):
        yield {"check": "state dict", "case": f"transformer, {name}", **_state(OPTIMIZERS[name], device)}


def _compared(
    make: Callable[[], Model],
    optimizer: MakeOptimizer,
    device: torch.device,
    how: dict[str, Any],
    num_steps: int = NUM_STEPS,
    to_rounding: bool = False,
    **options: Any,
) -> Row:
    found: list[dict[str, torch.Tensor]] = []
    for overlapped in (False, True):
        training = Training(make, optimizer, device, overlapped, **(options if overlapped else {}))
        for _ in range(num_steps):
            training.step(**how)
        found.append(training.values())
        training.close()
    return verdict(found[1], found[0], to_rounding)


def _state(optimizer: MakeOptimizer, device: torch.device) -> Row:
    """State dicts agree with DDP's; after weft loads DDP's, three more steps give the same parameters."""
    trainings = [Training(Transformer, optimizer, device, overlapped) for overlapped in (False, True)]
    for training in trainings:
        for _ in range(3):
            training.step()
    expected, found = (training.optimizer.state_dict()["state"] for training in trainings)
    row = verdict(_flat(found), _flat(expected))
    trainings[1].optimizer.load_state_dict(trainings[0].optimizer.state_dict())
    for training in trainings:
        for _ in range(3):
            training.step()
    after = verdict(trainings[1].values(), trainings[0].values())
    trainings[1].close()
    return row if not row["ok"] else after


def _flat(state: dict[int, dict[str, Any]]) -> dict[str, torch.Tensor]:
    return {f"{n} {key}": torch.as_tensor(value) for n, of in state.items() for key, value in of.items()}


def verdict(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], to_rounding: bool = False) -> Row:
    """Bit for bit with two workers, to rounding with more."""
    if found.keys() != expected.keys():
        return {"ok": False, "bit_equal": False, "found": "different entries"}
    worst, where = 0.0, ""
    equal = True
    for name, value in expected.items():
        if not torch.equal(found[name].to(value.device), value):
            equal = False
            difference = (found[name].to(value.device).double() - value.double()).abs().max().item()
            relative = difference / max(value.double().abs().max().item(), 1e-12)
            worst, where = max((worst, where), (relative, name))
    ok = equal or ((to_rounding or dist.get_world_size() > 2) and worst < MAX_RELATIVE_DIFFERENCE)
    text = f"differs by {worst:.2g} of the largest value, most in {where}"
    if ok:
        text = "bit for bit DDP" if equal else f"DDP to rounding: {text}"
    return {"ok": ok, "bit_equal": equal, "found": text}
