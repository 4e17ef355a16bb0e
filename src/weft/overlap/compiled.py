"""torch.compile: a compiled module waits for its own parameters right before its compiled code runs.

[Note: compiled code]  Compiled code reads memory without going through Python, and Dynamo checks the exact class of
every parameter.  So the class that waits (reading.py) must be gone before Dynamo looks: otherwise it would trace the
wait and recompile in every step.  ``module.compile()`` and ``torch.compile(module)`` run the module's forward hooks
outside the compiled code.  So a pre-hook on each compiled module waits for the parameters below that module and those
among its arguments; parameters of later modules stay in flight.  A compiled module inside another one is traced with
it; its hook does nothing there, because the outer hook has already waited.

Modules are often compiled after ``weft.overlap`` was called, and functions that read parameters can be compiled, too.
Both are noticed when Dynamo begins to compile: at that moment we wait for everything in flight, so that Dynamo sees
only ordinary parameters, and newly compiled modules get their hook.  A compiled function that is not a module has no
place for a hook.  If Dynamo keeps compiling, step after step, while parameters are in flight, every ``step()`` waits
from then on: correct and compiled, with nothing hidden under forward.  The log says so.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from weft.overlap.part import Part
from weft.overlap.reading import is_guarded, use_all

_log = logging.getLogger("weft.overlap")

# Steps in which Dynamo compiled something unknown while parameters were in flight.
MAX_STEPS_SURPRISED = 3


def is_compiled(module: nn.Module) -> bool:
    """Whether ``.compile()`` or ``torch.compile(module)`` was called, or ``forward`` is compiled."""
    if module._compiled_call_impl is not None:
        return True
    forward = getattr(module, "forward", None)
    return hasattr(forward, "_torchdynamo_orig_callable") and not getattr(forward, "_torchdynamo_disable", False)


def uncompiled(model: nn.Module) -> nn.Module:
    """The module inside ``torch.compile(model)``, which every call goes through."""
    while isinstance(model, torch._dynamo.OptimizedModule):
        model = model._orig_mod
    return model


def untraced(function: Callable[..., Any]) -> Any:
    """Keep Dynamo from tracing this function and what it calls; a graph breaks there."""
    return torch._dynamo.disable(  # type: ignore[no-untyped-call]
        function,
        reason="weft.overlap waits for parameters when the model is called: compile the model or its blocks "
        "(model.compile(), block.compile()), not a function that calls the model",
    )


def outside_compiled(owner: nn.Module, function: Callable[..., None]) -> Callable[..., None]:
    """A hook of ``owner`` that calls ``function`` with the remaining arguments, but does nothing in compiled code."""
    dynamo_callback = torch._C._dynamo.eval_frame.get_eval_frame_callback
    call_untraced = untraced(function)

    def hook(module: nn.Module, *arguments: Any) -> None:
        if torch.compiler.is_compiling() or module is not owner:  # copies of the module have the hook, too
            return
        if dynamo_callback() is None:  # nothing around us is compiled
            function(*arguments)
        else:
            call_untraced(*arguments)

    # Otherwise Dynamo may compile the hook itself as an empty function.
    torch._dynamo.eval_frame.skip_code(hook.__code__)
    return hook


class CompiledModules:
    """The compiled modules of an overlapped model, including those compiled later."""

    def __init__(
        self,
        model: nn.Module,
        parts: Sequence[Part],
        submodule_begins: Callable[[], None],
    ) -> None:
        self._model = model
        self._root = uncompiled(model)
        self._parts = parts
        self._submodule_begins = submodule_begins
        self._hooks: dict[int, list[RemovableHandle]] = {}
        # With their class: to be guarded again after the compiled code that uses them has run.
        self._again: list[tuple[torch.Tensor, type]] = []
        self._num_inside = 0
        self._surprised_at: set[int] = set()
        self._on_compile = _listener(self)
        self.hook_new_modules()

    def hook_new_modules(self) -> None:
        """Install hooks on modules compiled since the last call."""
        for module in self._model.modules():
            if module is not self._root and id(module) not in self._hooks and is_compiled(module):
                self._hooks[id(module)] = self._hook_up(module)
        listeners = torch._dynamo.callback.callback_handler.start_callbacks
        if self._on_compile not in listeners:  # torch._dynamo.reset() forgets them
            listeners.append(self._on_compile)

    def hook_up_root(self, begins: Callable[[], None], ended: Callable[[], None]) -> None:
        """Hooks of the model itself: ``begins`` (then a wait for everything if it is compiled) and ``ended``."""
        dynamo_callback = torch._C._dynamo.eval_frame.get_eval_frame_callback
        root, parameters = self._root, [p for part in self._parts for p in part.schedule.parameters]

        def begin(compiled: bool, *arguments: Any) -> None:
            begins()
            if compiled or is_compiled(root):
                self._settle(parameters, arguments)

        def end(module: nn.Module, *_: Any) -> None:
            if module is root:
                self._use_ended()
                self._num_inside = 0
                ended()

        begin_untraced = untraced(begin)

        def before_model(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if module is not root:  # copies of the model have the hook, too
                return
            # Not None inside torch.compile(model), which may have been called later.
            callback = True if torch.compiler.is_compiling() else dynamo_callback()
            if callback is None:
                begin(False, args, kwargs)
            else:
                begin_untraced(True, args, kwargs)

        torch._dynamo.eval_frame.skip_code(before_model.__code__)
        self._hooks[id(root)] = [
            root.register_forward_pre_hook(before_model, prepend=True, with_kwargs=True),
            root.register_forward_hook(untraced(end), always_call=True),
        ]

    def remove(self) -> None:
        for hooks in self._hooks.values():
            for hook in hooks:
                hook.remove()
        self._hooks.clear()
        listeners = torch._dynamo.callback.callback_handler.start_callbacks
        if self._on_compile in listeners:
            listeners.remove(self._on_compile)

    def compile_begins(self) -> None:
        for part in self._parts:
            schedule = part.schedule
            if schedule.readable and any(map(is_guarded, schedule.parameters)):
                if not self._num_inside:  # otherwise a known module, which will not be compiled in every step
                    self._surprised_at.add(schedule.num_steps)
                schedule.flush()
        if len(self._surprised_at) == MAX_STEPS_SURPRISED:
            self._wait_in_step()
        self.hook_new_modules()

    def _hook_up(self, module: nn.Module) -> list[RemovableHandle]:
        parameters = list(module.parameters())
        before = outside_compiled(module, lambda args, kwargs: self._settle(parameters, args, kwargs))
        after = outside_compiled(module, lambda *_: self._use_ended())
        return [
            module.register_forward_pre_hook(before, prepend=True, with_kwargs=True),
            module.register_forward_hook(after, always_call=True),
        ]

    def _settle(self, parameters: Iterable[torch.Tensor], *arguments: Any) -> None:
        self._submodule_begins()
        self._num_inside += 1
        use_all(parameters, False, self._again)
        use_all(arguments, False, self._again)

    def _use_ended(self) -> None:
        self._num_inside = max(0, self._num_inside - 1)
        for parameter, guard in self._again:
            parameter.__class__ = guard
        self._again.clear()

    def _wait_in_step(self) -> None:
        _log.warning(
            "torch.compile keeps compiling while parameters are in flight (does a compiled function that is not a "
            "module read them?): from now on step() waits for them, and nothing is hidden under forward; compile "
            "modules instead (block.compile())"
        )
        self._surprised_at.add(-1)  # only once
        for part in self._parts:
            if part.optimizer is not None:
                hook = part.optimizer.register_step_post_hook(lambda *_, schedule=part.schedule: schedule.flush())
                self._hooks[id(part)] = [hook]


def _listener(modules: CompiledModules) -> Callable[[Any], None]:
    """Dynamo keeps a reference to it, which must not keep the model alive."""
    reference = weakref.ref(modules)

    def compile_begins(event: Any) -> None:
        alive = reference()
        if alive is None:
            torch._dynamo.callback.callback_handler.start_callbacks.remove(compile_begins)
        elif event.callback_trigger is torch._dynamo.callback.CallbackTrigger.DYNAMO:
            alive.compile_begins()

    return compile_begins
