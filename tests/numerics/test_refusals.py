"""Bad input gets a message that says what to do, and leaves the model unchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import weft
from training import Run, Tangle, Tower, adamw, left_as_it_was, made, sgd, with_weft
from weft.errors import OverlapError
from workers import on_workers


def refused(model: nn.Module, optimizer: torch.optim.Optimizer, message: str, **options: Any) -> None:
    with left_as_it_was(model, optimizer), pytest.raises(OverlapError, match=message):
        weft.overlap(model, optimizer, **options)
    # and nothing is left that would prevent a correct call
    assert len(dist.distributed_c10d._world.pg_map) == 1


@on_workers(2)
def test_an_optimizer_with_parameters_of_another_model_is_refused() -> None:
    model = Tower()
    refused(model, sgd(Tower()), "not in the model")
    refused(model, torch.optim.SGD([*model.parameters(), nn.Parameter(torch.zeros(3))], lr=0.1), r"shape \(3,\)")


@on_workers(2)
def test_known_sparse_gradients_are_refused_at_the_start() -> None:
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 3))
    refused(model, sgd(model), "sparse=False")


@on_workers(2)
def test_unexpected_sparse_gradients_are_refused() -> None:
    class Surprise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.ones(5, 3))

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return nn.functional.embedding(rows, self.table, sparse=True)

    model = Surprise()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weft.overlap(model, optimizer)
    loss = model(torch.tensor([1, 2])).sum()
    with pytest.raises(OverlapError, match=r"gradient of table.*only dense gradients"):
        loss.backward()
    assert torch.equal(model.table, torch.ones(5, 3))


@on_workers(2)
def test_a_missing_process_group_is_refused() -> None:
    model = Tower()
    optimizer = sgd(model)
    dist.barrier()
    dist.destroy_process_group()
    with left_as_it_was(model, optimizer), pytest.raises(OverlapError, match="init_process_group"):
        weft.overlap(model, optimizer)


@pytest.mark.parametrize("clip", ["handle", "torch"])
@pytest.mark.parametrize("after_steps", [0, 3])
@on_workers(2)
def test_clipping_while_eager_is_refused(after_steps: int, clip: str) -> None:
    run = with_weft(Tower(), eager=True).train(after_steps)
    run.backward(after_steps)
    with pytest.raises(OverlapError, match="eager=False"):
        run.clip(clip)


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@on_workers(2)
def test_grad_scaler_while_eager_is_refused(fused: bool, unscale: bool) -> None:
    model = Tower()
    run = with_weft(model, lambda m: torch.optim.AdamW(m.parameters(), fused=fused), eager=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    run.backward(0, scaler.scale)
    use = scaler.unscale_ if unscale else scaler.step
    with pytest.raises(OverlapError, match="eager=False"):
        use(run.optimizer)


@on_workers(2)
def test_different_models_on_two_workers_are_refused() -> None:
    width = 3 + dist.get_rank()
    model: nn.Module = nn.Linear(4, width)
    refused(model, sgd(model), r"worker 0 has `weight \(3, 4\).*worker 1 has `weight \(4, 4\)")
    deeper = nn.Sequential(*[nn.Linear(2, 2) for _ in range(width)])
    refused(deeper, sgd(deeper), "different models")
    same = nn.Linear(2, 2)
    optimizer = sgd(same) if dist.get_rank() else adamw(same)
    refused(same, optimizer, "AdamW.*SGD")
    refused(same, sgd(same), "bucket_bytes=64.*bucket_bytes=128", bucket_bytes=64 * (1 + dist.get_rank()))


def _frozen_parameter(rank: int, shapes: Sequence[int], dtypes: Sequence[torch.dtype] = (torch.float32,) * 2) -> Any:
    return nn.Parameter(torch.ones(shapes[rank], dtype=dtypes[rank]), requires_grad=False)


# What each worker adds to the same model under the name "extra"; none of it is trained.
UNLIKE: dict[str, Callable[[int], Any]] = {
    "frozen, shape": lambda rank: _frozen_parameter(rank, (3, 4)),
    "frozen, dtype": lambda rank: _frozen_parameter(rank, (4, 4), (torch.float32, torch.float64)),
    "frozen, one worker": lambda rank: _frozen_parameter(rank, (4, 4)) if rank else None,
    "buffer, shape": lambda rank: torch.zeros((2, 3) if rank else (3, 2)),
    "buffer, size": lambda rank: torch.zeros(3 + rank),
    "buffer, dtype": lambda rank: torch.zeros(4, dtype=torch.int32 if rank else torch.float32),
    "buffer, one worker": lambda rank: torch.zeros(4) if rank else None,
}


@pytest.mark.parametrize("case", UNLIKE)
@on_workers(2)
def test_frozen_parameters_and_buffers_that_differ_between_workers_are_refused_on_all(case: str) -> None:
    torch.manual_seed(0)
    model = Tower()
    extra = UNLIKE[case](dist.get_rank())
    (model.register_parameter if isinstance(extra, nn.Parameter) else model.register_buffer)("extra", extra)
    refused(model, sgd(model), "workers have different models")


@on_workers(2)
def test_buffers_that_stay_local_may_differ_between_workers() -> None:
    model = Tower()
    model.register_buffer("extra", torch.zeros(3 + dist.get_rank()))
    weft.overlap(model, sgd(model), broadcast_buffers=False).detach()
    weft.overlap(model, sgd(model), ignore=["extra"]).detach()


@pytest.mark.parametrize("case", ["sparse buffer", "expanded buffer", "meta buffer"])
@on_workers(1)
def test_one_worker_alone_trains_with_buffers_that_cannot_be_sent(case: str) -> None:
    model = MODELS[case][0]()
    optimizer = sgd(model)
    weft.overlap(model, optimizer)
    before = model.weight.detach().clone()
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert not torch.equal(model.weight, before)


@on_workers(2)
def test_one_worker_refuses_and_the_other_does_not_hang() -> None:
    model = Tower()
    optimizer = sgd(model if dist.get_rank() == 0 else Tower())
    refused(model, optimizer, "worker 1 refused" if dist.get_rank() == 0 else "not in the model")


@on_workers(2)
def test_a_second_overlap_on_the_same_model_is_refused() -> None:
    run = with_weft(made(Tower)).train(1)
    with pytest.raises(OverlapError, match=r"already called.*detach\(\)"):
        weft.overlap(run.model, run.optimizer)
    wrapper = nn.Sequential(run.model)
    with pytest.raises(OverlapError, match=r"already called.*detach\(\)"):
        weft.overlap(wrapper, sgd(wrapper))
    run.train(2, first=1)


@on_workers(2)
def test_a_model_wrapped_in_ddp_is_refused() -> None:
    model = nn.parallel.DistributedDataParallel(Tower())
    with pytest.raises(OverlapError, match="plain module"):
        weft.overlap(model, sgd(model))


@pytest.mark.parametrize("early", [True, False])
@on_workers(2)
def test_a_learning_rate_that_changes_after_eager_has_used_it_is_refused(early: bool) -> None:
    run = with_weft(Tower(), eager=True).train(3)
    assert run.handle is not None
    run.handle.schedule.pacing.early = early  # also when tuning found that early gathers do not help
    run.backward(3)
    run.optimizer.param_groups[0]["lr"] = 1.0
    with pytest.raises(OverlapError, match="changed between backward"):
        run.optimizer.step()


@on_workers(2)
def test_reading_a_parameter_while_eager_replaces_it_is_refused() -> None:
    run = with_weft(Tower(), eager=True).train(3)
    run.optimizer.zero_grad()
    run.backward(3)
    with pytest.raises(OverlapError, match=r"read it after step\(\)"):
        run.model.state_dict()
    run.optimizer.step()
    assert run.model.state_dict()


@on_workers(2)
def test_a_parameter_unfrozen_after_overlap_is_refused() -> None:
    run = with_weft(made(Tangle)).train(2)
    run.model.frozen.requires_grad_(True)
    run.backward(2)
    with pytest.raises(OverlapError, match="unfrozen"):
        run.optimizer.step()


@on_workers(2)
def test_parameters_added_to_the_optimizer_later_are_refused() -> None:
    run = with_weft(Tower()).train(1)
    run.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    run.backward(1)
    with pytest.raises(OverlapError, match=r"detach\(\) and weft\.overlap again"):
        run.optimizer.step()


@on_workers(2)
def test_parameters_moved_out_of_wefts_memory_are_detected() -> None:
    run = with_weft(Tower()).train(1)
    with pytest.raises(OverlapError, match=r"detach\(\) before converting"):
        run.model.layers[0].double()
    run.optimizer.zero_grad()
    run.model.double()
    run.model.dtype = torch.float64
    with pytest.raises(OverlapError, match=r"detach\(\) on every worker"):
        run.backward(1)


OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "no bytes": ({"bucket_bytes": 0}, "positive number of bytes"),
    "half a byte": ({"bucket_bytes": 0.5}, "positive number of bytes"),
    "text": ({"bucket_bytes": "4M"}, "positive number of bytes"),
    "integer gradients": ({"comm_dtype": torch.int8}, "floating-point"),
    "a dtype's name": ({"comm_dtype": "bfloat16"}, "floating-point"),
}


@pytest.mark.parametrize("case", OPTIONS)
@on_workers(2)
def test_bad_options_are_refused(case: str) -> None:
    options, message = OPTIONS[case]
    model = Tower()
    refused(model, sgd(model), message, **options)


def _frozen() -> nn.Module:
    return Tower().requires_grad_(False)


def _complex() -> nn.Module:
    model = nn.Module()
    model.weight = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    return model


def _overlapping() -> nn.Module:
    model = nn.Module()
    model.one = nn.Parameter(torch.zeros(4))
    model.two = nn.Parameter(model.one.data.view(2, 2))
    return model


def _with_buffer(buffer: torch.Tensor) -> nn.Module:
    model = nn.Linear(2, 2)
    model.register_buffer("table", buffer)
    return model


MODELS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "nothing to train": (_frozen, "nothing to overlap"),
    "complex": (_complex, "real parameters only"),
    "shared memory": (_overlapping, "same nn.Parameter"),
    "meta": (lambda: nn.Linear(2, 2, device="meta"), "meta device"),
    "sparse buffer": (lambda: _with_buffer(torch.eye(3).to_sparse()), "table is sparse.*ignore"),
    "expanded buffer": (lambda: _with_buffer(torch.ones(1).expand(4)), r"table .*clone\(\).*ignore"),
    "meta buffer": (lambda: _with_buffer(torch.ones(3, device="meta")), "table is on the meta device.*ignore"),
}


@pytest.mark.parametrize("case", MODELS)
@on_workers(2)
def test_models_that_cannot_be_overlapped_are_refused(case: str) -> None:
    make, message = MODELS[case]
    model = make()
    optimizer = sgd(model)
    with pytest.raises(OverlapError, match=message):
        weft.overlap(model, optimizer)


@on_workers(2)
def test_arguments_that_are_not_a_model_or_an_optimizer_are_refused() -> None:
    model: Any = Tower()
    with pytest.raises(OverlapError, match=r"expected a torch\.nn\.Module"):
        weft.overlap([model], sgd(model))  # type: ignore[arg-type]
    refused_optimizer: Any = model.parameters
    with pytest.raises(OverlapError, match=r"expected a torch.optim.Optimizer"):
        weft.overlap(model, refused_optimizer)


@on_workers(2)
def test_an_optimizer_that_mixes_elements_cannot_be_eager() -> None:
    model = Tower()
    refused(model, torch.optim.Adafactor(model.parameters()), "element by element", eager=True)


@on_workers(2)
def test_unsupported_gradient_reads_are_refused() -> None:
    run = with_weft(Tower())
    run.backward(0)
    parameter = next(iter(run.model.parameters()))
    with pytest.raises(OverlapError, match=r"layers\.0\.weight.*full_gradient"):
        parameter.grad.abs()
    foreign = nn.Parameter(torch.zeros(1))
    assert isinstance(run, Run)
    assert run.handle is not None
    with pytest.raises(OverlapError, match="not a trainable parameter of the overlapped"):
        run.handle.full_gradient(foreign)
