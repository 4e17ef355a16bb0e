"""``optimizer.state`` while the state is sharded: reads like ordinary state, and can be written.

    optimizer.state[p]["exp_avg"]               the full tensor, assembled from all workers' parts
    optimizer.state[p]["exp_avg"].mul_(mask)    changes the state, as do assignments, deletions, clear() and pop()
    state = optimizer.state[p]; ...; step()     what was read before the step is outdated, and using it raises

It is never falsy: ``torch.distributed.checkpoint`` would make a step to fill it.  All workers must make the same
writes.
"""

from __future__ import annotations

import copy
from collections import UserDict, defaultdict
from collections.abc import ItemsView, Iterator, Mapping, MutableMapping, ValuesView
from typing import Any, Protocol

import torch
from torch.utils._pytree import tree_leaves, tree_map

from weft.errors import OverlapError


class StateSource(Protocol):
    """Reads and writes state by parameter number (sharded_state.py)."""

    def number_of(self, parameter: Any) -> int | None: ...
    def parameter(self, number: int) -> torch.nn.Parameter: ...
    def read(self, number: int | None = None) -> dict[int, dict[str, Any]]: ...
    def replace(self, states: Mapping[int, dict[str, Any]]) -> None: ...
    def replace_all(self, runs: list[Any]) -> None: ...
    def stamp(self, number: int) -> tuple[int, int]: ...
    def show_initial(self) -> None: ...


class StateMap(MutableMapping[Any, Any]):
    """By parameter, like the ``defaultdict`` it replaces.  Other keys are kept in ``rest``."""

    def __init__(self, source: StateSource) -> None:
        self._source = source
        self.rest: defaultdict[Any, Any] = defaultdict(dict)

    def _everything(self) -> dict[Any, Any]:
        source = self._source
        ours = {source.parameter(n): ParameterState(source, n, state) for n, state in source.read().items()}
        return {**ours, **self.rest}

    def __getitem__(self, key: Any) -> Any:
        number = self._source.number_of(key)
        if number is None:
            return self.rest[key]
        return ParameterState(self._source, number, self._source.read(number).get(number, {}))

    def __setitem__(self, key: Any, value: Any) -> None:
        number = self._source.number_of(key)
        if number is None:
            self.rest[key] = value
        else:
            self._source.replace({number: _plain(value)})

    def __delitem__(self, key: Any) -> None:
        if key not in self:
            raise KeyError(key)
        number = self._source.number_of(key)
        if number is None:
            del self.rest[key]
        else:
            self._source.replace({number: {}})

    def __contains__(self, key: Any) -> bool:
        number = self._source.number_of(key)
        return key in self.rest if number is None else bool(self._source.read(number))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._everything())

    def __len__(self) -> int:
        return len(self._everything())

    def __bool__(self) -> bool:
        self._source.show_initial()
        return True

    # These fetch from the other workers once, not once per parameter.

    def items(self) -> ItemsView[Any, Any]:
        return self._everything().items()

    def values(self) -> ValuesView[Any]:
        return self._everything().values()

    def pop(self, key: Any, *default: Any) -> Any:
        if key not in self:
            if default:
                return default[0]
            raise KeyError(key)
        value = _plain(self[key])
        del self[key]
        return value

    def clear(self) -> None:
        self.rest.clear()
        self._source.replace_all([])

    def copy(self) -> defaultdict[Any, Any]:
        return defaultdict(dict, {key: _plain(value) for key, value in self.items()})

    # A copied or pickled optimizer is an ordinary one.

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.copy(), memo)

    def __reduce__(self) -> Any:
        return defaultdict, (dict,), None, None, iter(self.copy().items())

    def __repr__(self) -> str:
        return "optimizer.state, sharded over all workers; dict(optimizer.state) assembles it"


class ParameterState(UserDict[str, Any]):
    """``optimizer.state[p]``: copies, valid until the next change; writes to them change the state."""

    def __init__(self, source: StateSource, number: int, state: Mapping[str, Any]) -> None:
        super().__init__()
        self._source = source
        self._number = number
        self._stamp = source.stamp(number)
        self.data = {k: StateTensor(v, self) if isinstance(v, torch.Tensor) else v for k, v in state.items()}

    def __getitem__(self, key: str) -> Any:
        self.check_current()
        return super().__getitem__(key)

    def __setitem__(self, key: str, value: Any) -> None:
        if value is self.data.get(key):
            return
        self.check_current()
        value = _plain(value)
        self.data[key] = StateTensor(value, self) if isinstance(value, torch.Tensor) else value
        self.changed()

    def __delitem__(self, key: str) -> None:
        self.check_current()
        super().__delitem__(key)
        self.changed()

    def plain(self) -> dict[str, Any]:
        """An ordinary dict of ordinary tensors, without a copy."""
        return {k: v.plain if isinstance(v, StateTensor) else v for k, v in self.data.items()}

    def changed(self) -> None:
        self._source.replace({self._number: self.plain()})
        self._stamp = self._source.stamp(self._number)

    def check_current(self) -> None:
        if self._stamp != self._source.stamp(self._number):
            raise OverlapError(
                "this optimizer state was read before a later step(), load_state_dict(), or write, and weft.overlap "
                "keeps only the newest: read optimizer.state[p] again, or clone() what you want to keep"
            )


class StateTensor(torch.Tensor):
    """One tensor of a :class:`ParameterState`; in-place changes are written to the state."""

    plain: torch.Tensor
    _state: ParameterState

    @staticmethod
    def __new__(cls, plain: torch.Tensor, state: ParameterState) -> StateTensor:
        made: StateTensor = torch.Tensor._make_subclass(cls, plain)
        made.plain = plain
        made._state = state
        return made

    def __init__(self, plain: torch.Tensor, state: ParameterState) -> None:
        super().__init__()

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        shown = {id(t.plain): t for t in tree_leaves((args, kwargs)) if isinstance(t, StateTensor)}
        for tensor in shown.values():
            tensor._state.check_current()
        result = func(*tree_map(_plain, args), **tree_map(_plain, kwargs))
        for state in {id(s): s for s in (t._state for t in _written(func, args, kwargs))}.values():
            state.changed()
        is_view = any(returned.alias_info is not None for returned in func._schema.returns)
        first = next(iter(shown.values()))

        def show(value: Any) -> Any:
            if not is_view or not isinstance(value, torch.Tensor):
                return value
            return shown[id(value)] if id(value) in shown else StateTensor(value, first._state)

        return tree_map(show, result)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        return self.plain.clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.plain.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[StateTensor]:
    """The tensors that an operator changes, according to its schema."""
    found: list[Any] = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found += tree_leaves(args[position] if position < len(args) else kwargs.get(argument.name))
    return [value for value in found if isinstance(value, StateTensor)]


def _plain(value: Any) -> Any:
    if isinstance(value, StateTensor):
        return value.plain
    if isinstance(value, ParameterState):
        return value.plain()
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return value
