"""Gradients that a mod defines itself: by a torch.autograd.Function, or by a formula registered for an operation.

Traced floats require gradients, so that torch links the result of such a function to its backward function. The trace
calls this once, with a stand-in for the result's gradient, and the program gets the slopes that it gives.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from flashlift.torch._internals import (
    WITH_AUTOGRAD,
    has_autograd_kernel,
    no_torch_functions,
    output_count,
    registered_backward,
)
from flashlift.torch._program import Builder, Node
from flashlift.torch._trace.recording import Recording
from flashlift.torch._trace.values import Value


class NotLinear(Exception):
    """A backward function is not a product of the gradient and of what a program can compute."""


class OwnGradients:
    def __init__(self, recording: Recording, mode: Any) -> None:
        """mode: the dispatch mode that a backward function runs under."""
        self._recording = recording
        self._mode = mode
        # By the nodes of torch's graph, which link results to their arguments, and the number among a node's results.
        self._results: dict[tuple[Any, int], torch.Tensor] = {}
        self._open: set[Any] = set()  # operations whose formula is followed
        self._in_backward = False  # whose results need no gradients of their own

    def note(self, func: Any, tensors: list[torch.Tensor]) -> None:
        """Gives the results among an operation's arguments their gradients. When torch stores a result for the backward
        function, it detaches it, and the function is not complete yet."""
        for one in tensors:
            node = one.grad_fn
            if node is None or not hasattr(node, "_forward_cls"):
                continue
            if self._recording.is_unknown(one):
                self._recording.note_alias(one)
            place = node, one.output_nr
            is_complete = func is not torch.ops.aten.detach.default and not self._in_backward
            if is_complete and place not in self._results:
                self._results[place] = one
                self._attach(one, node)

    def note_all(self) -> None:
        """Gives all results so far their gradients: an operation in place is about to change what they came from."""
        self.note(None, self._recording.linked())

    def follow(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """The result of an operation with a registered formula, linked to it; NotImplemented for other operations."""
        if func.namespace == "aten" or func in self._open or not self._has_formula(func):
            return NotImplemented
        self._open.add(func)
        try:
            with WITH_AUTOGRAD(), self._mode:
                return func(*args, **kwargs)
        finally:
            self._open.discard(func)

    def _has_formula(self, func: Any) -> bool:
        return torch.is_grad_enabled() and has_autograd_kernel(func) and registered_backward(func)

    def _attach(self, result: torch.Tensor, node: Any) -> None:
        recording = self._recording
        name = node._forward_cls.__name__
        if recording.is_unknown(result) or recording.is_leaf(result):
            return  # computed before the call: its gradient is torch's own
        builder = recording.builder
        value = recording.value_of(result)
        try:
            if recording.is_captured(result):
                raise NotLinear  # a function of captured tensors, of which each call repeats the operations alone
            whole = builder.detached(value.node)
            for given, slope in self._slopes(result, node):
                whole = _with_slope(builder, whole, recording.value_of(given).node, builder.detached(slope))
        except Exception:  # of any kind: the values are right, and only a backward pass needs the gradient
            recording.autograd_function = recording.autograd_function or name
            return
        recording.bind(result, Value.scalar(value.dtype, whole))

    def _slopes(self, result: torch.Tensor, node: Any) -> list[tuple[torch.Tensor, Node]]:
        """The arguments of a function, each with the slope that its backward function gives for it."""
        recording = self._recording
        if result.dim() or output_count(node) != 1:
            raise NotLinear
        gradient = recording.builder.node("input", "f32", payload="gradient")
        given = recording.traced(Value.scalar(result.dtype, gradient), requires_grad=False)
        self._in_backward = True
        try:
            # Graphs of backward functions set the mode of gradients, and leave it so.
            with torch.enable_grad(), no_torch_functions(), self._mode:
                found = node.apply(given)
        finally:
            self._in_backward = False
        found = found if isinstance(found, tuple) else (found,)
        needed = [one for one, is_needed in zip(found, node.needs_input_grad, strict=False) if is_needed]
        arguments = [self._argument(*edge) for edge in node.next_functions if edge[0] is not None]
        slopes = []
        for argument, one in zip(arguments, needed, strict=True):
            if one is None:
                continue
            if one.dim() or argument.dim():
                raise NotLinear
            slope = _slope(recording.builder, recording.value_of(one).node, gradient)
            if slope is not None and recording.builder.follows(recording.value_of(argument).node):
                slopes.append((argument, slope))
        return slopes

    def _argument(self, node: Any, number: int) -> torch.Tensor:
        if hasattr(node, "variable"):
            return node.variable
        place = node, number
        return self._results[place] if place in self._results else self._recording.captured_with(node, number)


def _with_slope(builder: Builder, whole: Node, argument: Node, slope: Node) -> Node:
    """The same value, with the slope of an argument: (x - detached x) * slope is 0, but has a gradient. Infinite
    arguments and slopes, for which it is NaN, have none."""
    nothing = builder.emit("mul", builder.emit("sub", argument, builder.detached(argument)), slope)
    is_finite = builder.emit("eq", nothing, builder.constant(0.0, "f32"))
    return builder.emit("select", is_finite, builder.emit("add", whole, nothing), whole)


def _slope(builder: Builder, node: Node, gradient: Node) -> Node | None:
    """What a node multiplies the gradient by; None if that is 0."""

    @functools.cache
    def depends(node: Node) -> bool:
        return node is gradient or any(map(depends, node.args))

    @functools.cache
    def of(node: Node) -> Node | None:
        args = node.args
        if node is gradient:
            return builder.constant(1.0, "f32")
        if node.op == "constant" and node.payload == 0:
            return None
        if node.op == "bitcast_f32" and args[0].op == "bitcast_i32":  # detached
            return of(args[0].args[0])
        if node.op == "select" and not depends(args[0]):
            parts = [of(one) or builder.constant(0.0, "f32") for one in args[1:]]
            return builder.emit("select", args[0], *parts)
        if node.op in ("add", "sub"):
            one, other = map(of, args)
            if one is not None and other is not None:
                return builder.emit(node.op, one, other)
            return one if other is None else other if node.op == "add" else builder.emit("neg", other)
        if node.op == "mul" and not all(map(depends, args)):
            inner, factor = args if depends(args[0]) else args[::-1]
            return _if_any(of(inner), lambda slope: builder.emit("mul", slope, factor))
        if node.op == "div" and not depends(args[1]):
            return _if_any(of(args[0]), lambda slope: builder.emit("div", slope, args[1]))
        if node.op in ("neg", "round_bf16", "round_f16"):
            return _if_any(of(args[0]), lambda slope: builder.node(node.op, "f32", (slope,)))
        raise NotLinear

    return of(node)


def _if_any(slope: Node | None, compute: Callable[[Node], Node]) -> Node | None:
    return None if slope is None else compute(slope)
