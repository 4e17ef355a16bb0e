"""Layer profiles of popular models for ``weft predict`` and ``weft bench overlap --profiles``.

    python -m benchmarks.layer_profiles          # writes src/weft/perf/profiles/*.json

Sizes are those of the real models (timm and transformers), built on the meta device: no weights are made or downloaded.
A layer is a module with parameters of its own, in the order in which a forward runs them.  Its share of the time is its
share of the floating-point operations, counted by torch; operations of a module without parameters (attention scores)
count for the last layer inside it.  Backward repeats each product twice, for the layer's input and for its weights; the
first layer's input needs no gradient.  What is not a product (normalization, activations) counts as free.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

FOLDER = Path(__file__).resolve().parents[1] / "src" / "weft" / "perf" / "profiles"
NUM_TOKENS = 128


def _timm(name: str, size: int) -> Callable[[], tuple[nn.Module, torch.Tensor, str]]:
    def make() -> tuple[nn.Module, torch.Tensor, str]:
        for needed in ("nms", "qnms"):  # by torchvision's CUDA build on a CPU, which has no operators of its own
            with contextlib.suppress(RuntimeError):
                torch.library.define(f"torchvision::{needed}", "(Tensor d, Tensor s, float t) -> Tensor")
        import timm

        source = f"timm {timm.__version__} {name}, images of {size} x {size}"
        return timm.create_model(name), torch.empty(1, 3, size, size), source

    return make


def _bert(**options: int) -> Callable[[], tuple[nn.Module, torch.Tensor, str]]:
    def make() -> tuple[nn.Module, torch.Tensor, str]:
        transformers: Any = import_module("transformers")  # only partly typed
        config = transformers.BertConfig(**options)
        source = f"transformers {transformers.__version__} BertModel, {NUM_TOKENS} tokens"
        return transformers.BertModel(config), torch.zeros(1, NUM_TOKENS, dtype=torch.int64), source

    return make


LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
MODELS = {
    "resnet50": _timm("resnet50", 224),
    "densenet201": _timm("densenet201", 224),
    "inception-v4": _timm("inception_v4", 299),
    "bert-base": _bert(),
    "bert-large": _bert(**LARGE),
}


def profile(name: str) -> dict[str, Any]:
    """What goes into the file of one model."""
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, example, source = MODELS[name]()
        order: list[str] = []
        layers = {n: m for n, m in model.named_modules() if any(True for _ in m.parameters(recurse=False))}
        for layer_name, layer in layers.items():
            layer.register_forward_pre_hook(lambda *_, n=layer_name: order.append(n))
        counter = FlopCounterMode(display=False)
        with counter, torch.no_grad():
            model(example)
    prefix = type(model).__name__
    counted = {
        path.removeprefix(prefix).removeprefix("."): sum(operations.values())
        for path, operations in counter.get_flop_counts().items()
        if path != "Global"
    }
    flops = _of_layers(model, layers, counted, list(dict.fromkeys(order)))
    # A layer that the forward never calls (its parameters are read by its parent) keeps its place among the others.
    named = [*dict.fromkeys(order), *(n for n in layers if n not in order)]
    first = next(n for n in named if flops[n])
    rows = [
        [n, sum(p.numel() for p in layers[n].parameters(recurse=False)), flops[n], flops[n] * (1 if n == first else 2)]
        for n in named
    ]
    forward, backward = sum(row[2] for row in rows), sum(row[3] for row in rows)
    return {
        "name": name,
        "source": source,
        "forward_flops_per_sample": forward,
        "backward_flops_per_sample": backward,
        "layers": [[n, size, f / forward, b / backward] for n, size, f, b in rows],
    }


def _of_layers(
    model: nn.Module, layers: dict[str, nn.Module], counted: dict[str, int], order: list[str]
) -> dict[str, int]:
    """Operations of each layer, with those of modules around it that no module inside has done."""
    found = dict.fromkeys(layers, 0)
    for name, module in model.named_modules():
        if name not in counted:
            continue
        own = counted[name] - sum(_inside(child, counted) for child in _children(name, module))
        if own <= 0:
            continue
        inside = [n for n in order if n == name or n.startswith(f"{name}." if name else "")]
        found[inside[-1]] += own
    return found


def _children(name: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(f"{name}.{child}" if name else child, found) for child, found in module.named_children()]


def _inside(named: tuple[str, nn.Module], counted: dict[str, int]) -> int:
    """A list of modules is never called itself: what those in it did counts."""
    name, module = named
    return counted[name] if name in counted else sum(_inside(child, counted) for child in _children(name, module))


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in MODELS:
        data = profile(name)
        rows = ",\n".join(f"    {json.dumps([n, s, round(f, 7), round(b, 7)])}" for n, s, f, b in data.pop("layers"))
        text = json.dumps(data, indent=2).removesuffix("\n}") + f',\n  "layers": [\n{rows}\n  ]\n}}\n'
        (FOLDER / f"{name}.json").write_text(text)
        total = sum(layer[1] for layer in json.loads(text)["layers"])
        print(f"{name}: {total / 1e6:.1f} M parameters, {data['forward_flops_per_sample'] / 1e9:.1f} GFLOP forward")


if __name__ == "__main__":
    main()
