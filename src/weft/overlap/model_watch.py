"""Whether the model still holds the parameters that weft.overlap was given.

``load_state_dict(assign=True)``, ``resize_token_embeddings`` and ``module.weight = nn.Parameter(...)`` put new objects
in their place.  The optimizer and our hooks would keep the old ones, and the model would train on without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from weft.errors import OverlapError


class ModelWatch:
    """Looks at every place in the module tree: one lookup each, some tens of microseconds per step."""

    def __init__(self, model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
        self._model = model
        self._parameters = parameters
        self._places = self._all_places()

    def check(self) -> None:
        if all(place.get(name) is held for place, name, held in self._places):
            return
        # Something has moved.  Fine as long as our parameters are still in there (a parametrization, a wrapper).
        present = {id(parameter) for parameter in self._model.parameters()}
        replaced = [name for name, parameter in self._parameters.items() if id(parameter) not in present]
        if replaced:
            raise OverlapError(
                f"parameter {replaced[0]} was replaced by another object after weft.overlap was called "
                "(load_state_dict(assign=True)? resize_token_embeddings()? module.weight = nn.Parameter(...)?), and "
                "the optimizer still holds the old one: call detach() on every worker, make the change, make an "
                "optimizer with the new parameters, then call weft.overlap again"
            )
        self._places = self._all_places()

    def _all_places(self) -> list[tuple[dict[str, Any], str, Any]]:
        return [
            (place, name, held)
            for module in self._model.modules()
            for place in (module._parameters, module._modules)
            if isinstance(place, dict)  # a script module's are not, and cannot be replaced
            for name, held in place.items()
        ]
