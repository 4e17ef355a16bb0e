"""Random number generators: seeded per worker, saved and restored exactly.

States go into the checkpoint's manifest as JSON.  numpy is included only if the script has imported it.
"""

from __future__ import annotations

import base64
import hashlib
import random
import sys
from typing import Any

import torch

_MAX_SEED = (1 << 63) - 1


def derived_seed(*parts: int) -> int:
    """Hash several numbers into a seed that is the same in every process and on every machine.

    >>> derived_seed(0, 1) != derived_seed(1, 0)
    True
    """
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") & _MAX_SEED


def seed_everything(seed: int) -> None:
    """Seed torch (all devices), random, and numpy if it is loaded."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFF_FFFF)


def capture_rng(device: torch.device) -> dict[str, Any]:
    """The state of every generator, as JSON values."""
    version, internal, gauss = random.getstate()
    state: dict[str, Any] = {"torch": _encode(torch.get_rng_state()), "random": [version, list(internal), gauss]}
    if device.type == "cuda":
        state["cuda"] = _encode(torch.cuda.get_rng_state(device))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, has_gauss, cached = numpy.random.get_state()
        state["numpy"] = [name, keys.tolist(), int(position), int(has_gauss), float(cached)]
    return state


def restore_rng(state: dict[str, Any], device: torch.device) -> None:
    """The inverse of :func:`capture_rng`; generators that were not saved are unchanged."""
    torch.set_rng_state(_decode(state["torch"]))
    version, internal, gauss = state["random"]
    random.setstate((version, tuple(internal), gauss))
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(_decode(state["cuda"]), device)
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in state:
        name, keys, position, has_gauss, cached = state["numpy"]
        numpy.random.set_state((name, numpy.array(keys, dtype=numpy.uint32), position, has_gauss, cached))


def _encode(state: torch.Tensor) -> str:
    return base64.b64encode(bytes(state.tolist())).decode()


def _decode(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8).clone()
