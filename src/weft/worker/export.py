"""``python -m weft.worker.export CHECKPOINT OUT MODEL``: a model's plain state dict out of a checkpoint.

A program of its own, for ``weft checkpoint export``: the command line never imports torch.  It prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from weft.core.checkpoint_files import MANIFEST_NAME
from weft.errors import CheckpointError, InputError, MissingToolError, WeftError
from weft.worker.checkpoint_folder import CheckpointFolder, verify
from weft.worker.manifest import Manifest
from weft.worker.shards import model_state, read_parts


def export(path: Path, out: Path, model: str = "") -> dict[str, Any]:
    """Write the state dict of ``model`` (needed only if there are several) to ``out``, complete or not at all."""
    found, manifest = _checkpoint(path)
    key = _chosen(model, manifest, found)
    parts, replicated = read_parts(found, manifest.world_size)
    state = {name: value.clone() for name, value in model_state(key, parts, replicated).items()}
    aside = out.with_name(f".{out.name}.writing")
    try:
        if out.suffix == ".safetensors":
            _save_safetensors(state, aside)
        else:
            with aside.open("wb") as file:  # torch would raise RuntimeError if it cannot be opened
                torch.save(state, file)
        os.replace(aside, out)
    finally:
        aside.unlink(missing_ok=True)
    return {
        "checkpoint": str(found),
        "model": key,
        "step": manifest.step,
        "tensors": len(state),
        "bytes": out.stat().st_size,
        "written_to": str(out),
    }


def _checkpoint(path: Path) -> tuple[Path, Manifest]:
    """``path`` itself, or the newest good checkpoint in that folder."""
    if (path / MANIFEST_NAME).exists():
        return path, verify(path)
    damaged: list[str] = []
    newest = CheckpointFolder(path, keep=1).newest_good(damaged.append)
    if newest is None:
        why = f"; {damaged[0]}" if damaged else ""
        raise InputError(
            f"{path} holds no checkpoint{why}: give the checkpoint folder of a session, or one checkpoint in it"
        )
    return newest


def _chosen(model: str, manifest: Manifest, found: Path) -> str:
    names = ", ".join(manifest.models) or "none"
    if model and model not in manifest.models:
        raise InputError(f"{found} holds no model {model!r} (it has {names}): use the name passed to run.resume")
    if not manifest.models:
        raise InputError(f"{found} holds no model: export a checkpoint of a run that passed one to run.resume")
    if not model and len(manifest.models) > 1:
        raise InputError(f"{found} holds {len(manifest.models)} models ({names}): choose one with --model")
    return model or next(iter(manifest.models))


def _save_safetensors(state: dict[str, torch.Tensor], path: Path) -> None:
    try:
        from safetensors.torch import save_file
    except ImportError:
        raise MissingToolError("a .safetensors file needs the package safetensors: pip install safetensors") from None
    save_file({name: value.contiguous() for name, value in state.items()}, path)


if __name__ == "__main__":
    try:
        print(json.dumps(export(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])))
    except (WeftError, OSError) as error:
        code = error.exit_code if isinstance(error, WeftError) else CheckpointError.exit_code
        print(json.dumps({"error": str(error), "exit_code": code}))
        sys.exit(code)
