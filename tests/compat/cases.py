"""The cases of the table in docs/overlap.md: what is trained, how, and what must come out against DDP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from tests.compat import loops, tasks
from torch import nn

from training import MakeOptimizer, Several, adamw, sgd

BIT_EQUAL = "bit-equal"
TO_ROUNDING = "to rounding"
REFUSED = "refused"


@dataclass(frozen=True)
class Case:
    """Trained on two workers with DDP and with weft, on the same batches."""

    name: str
    package: str
    make: Callable[[], tasks.Task]
    optimizer: MakeOptimizer = adamw
    loop: Callable[[Any], Any] = loops.plain
    outcome: str = BIT_EQUAL
    # For what is refused: a part of the message.
    message: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    ddp_options: dict[str, Any] = field(default_factory=dict)
    short: bool = False


def from_timm(name: str) -> MakeOptimizer:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        import timm.optim

        optimizer: torch.optim.Optimizer = timm.optim.create_optimizer_v2(model, opt=name, lr=1e-3, weight_decay=0.01)
        return optimizer

    return make


def of_torch(name: str, **options: Any) -> MakeOptimizer:
    return lambda model: getattr(torch.optim, name)(model.parameters(), **options)


def muon_and_adamw(model: nn.Module) -> Any:
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    return Several([torch.optim.Muon(matrices, lr=1e-2), torch.optim.AdamW(others, lr=1e-3)])


VISION = ["resnet", "mobilenet", "efficientnet", "vit", "convnext", "densenet", "swin"]
TIMM = ["resnet", "vit", "convnext", "mixer", "efficientnet"]
LANGUAGE = ["bert", "gpt2", "llama", "t5", "vit", "whisper", "wav2vec2", "mamba", "mixtral"]
ADAPTERS = ["lora", "modules_to_save", "prefix tuning", "prompt tuning"]
TIMM_OPTIMIZERS = ["lamb", "lars", "madgrad", "adamp", "sgdp", "adabelief", "adan", "lion", "nadamw", "adafactor"]
TORCH_OPTIMIZERS = {
    "Adam": {"amsgrad": True},
    "NAdam": {},
    "RAdam": {},
    "Adamax": {},
    "Adagrad": {},
    "Adadelta": {},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Rprop": {},
    "ASGD": {},
    "Adafactor": {},
}

resnet = partial(tasks.torchvision_model, "resnet")
mobilenet = partial(tasks.torchvision_model, "mobilenet")
vit = partial(tasks.torchvision_model, "vit")
bert = partial(tasks.transformers_model, "bert")
gpt2 = partial(tasks.transformers_model, "gpt2")
llama = partial(tasks.transformers_model, "llama")

CASES = [
    *(Case(f"{m}, AdamW", "torchvision", partial(tasks.torchvision_model, m), short=m == "mobilenet") for m in VISION),
    Case("resnet, SGD with momentum", "torchvision", resnet, sgd),
    *(Case(f"{m}, AdamW", "timm", partial(tasks.timm_model, m)) for m in TIMM),
    *(Case(f"mixer, {o}", "timm", partial(tasks.timm_model, "mixer"), from_timm(o), short=o == "lamb")
      for o in TIMM_OPTIMIZERS),
    Case("mixer, Lookahead", "timm", partial(tasks.timm_model, "mixer"), from_timm("lookahead_adamw"), outcome=REFUSED,
         message="Lookahead"),
    *(Case(f"{m}, AdamW", "transformers", partial(tasks.transformers_model, m), short=m == "mixtral")
      for m in LANGUAGE),
    Case("gpt2 (tied weights), eager=True", "transformers", gpt2, options={"eager": True}),
    Case("llama, tuned buckets", "transformers", llama, options={"tune": True}),
    Case("llama, gradient checkpointing", "transformers", partial(tasks.checkpointed, "llama"), short=True),
    Case("bert, gradient checkpointing", "transformers", partial(tasks.checkpointed, "bert")),
    Case("gpt2, resize_token_embeddings after weft.overlap", "transformers", gpt2, loop=loops.resized_embeddings,
         outcome=REFUSED, message="detach"),
    *(Case(f"{a}, AdamW", "peft", partial(tasks.peft_model, a), short=a == "lora") for a in ADAPTERS),
    Case("bert, frozen base", "transformers", tasks.frozen_base),
    *(Case(f"vit, {o}", "torch.optim", vit, of_torch(o, lr=1e-3, **kw)) for o, kw in TORCH_OPTIMIZERS.items()),
    Case("vit, Muon for matrices, AdamW for the rest", "torch.optim", vit, muon_and_adamw),
    Case("bert, accumulation with no_sync", "loop", bert, loop=loops.accumulated),
    Case("bert, clip_grad_norm_", "loop", bert, loop=loops.clipped, outcome=TO_ROUNDING),
    Case("bert, clip_grad_norm_ with exact_clipping", "loop", bert, loop=loops.clipped,
         options={"exact_clipping": True}),
    Case("bert, accumulation without no_sync", "loop", bert, loop=loops.accumulated_in_sync),
    Case("bert, p.grad changed in place before step()", "loop", bert, loop=loops.changed_gradients),
    Case("bert, GradScaler", "loop", bert, loop=loops.scaled),
    Case("bert, bf16 autocast", "loop", partial(tasks.autocast, bert)),
    Case("resnet, bf16 autocast", "loop", partial(tasks.autocast, resnet)),
    Case("bert, OneCycleLR", "loop", bert, loop=loops.scheduled),
    Case("mobilenet, moving average of weights", "loop", mobilenet, loop=loops.averaged, short=True),
    Case("vit, SWA", "loop", vit, loop=loops.swa),
    Case("mobilenet, evaluation in between", "loop", mobilenet, loop=loops.evaluated),
    Case("gpt2, saved and loaded in between", "loop", gpt2, loop=loops.resumed),
    Case("gpt2, torch.distributed.checkpoint in between", "loop", gpt2, loop=loops.resumed_by_dcp),
    Case("vit, parameters scaled in place after step()", "loop", vit, loop=loops.edited),
    Case("bert, join with uneven batches", "loop", bert, of_torch("SGD", lr=0.05), loop=loops.uneven),
    Case("mobilenet, broadcast_buffers=False", "loop", mobilenet, options={"broadcast_buffers": False},
         ddp_options={"broadcast_buffers": False}),
    Case("resnet, channels_last", "loop", tasks.channels_last),
    Case("vit, blocks compiled by inductor", "loop", tasks.compiled_blocks),
    Case("bert, save_model", "safetensors", bert, loop=loops.safetensors),
    Case("bert, Accelerator.prepare, accumulation", "accelerate", bert, loop=loops.accelerated),
    Case("mobilenet, training_step calls submodules", "lightning", tasks.lightning_step),
]  # fmt: skip

BY_NAME = {f"{case.package}: {case.name}": case for case in CASES}
