"""flex_attention inside torch.compile, with no graph break.

A compiled graph cannot hold Python functions, so the mods have to become graphs whose captured tensors are arguments.
TorchDynamo does that for PyTorch's own flex_attention, a higher-order operator; ours is one too, and has Dynamo treat
it the same way. It never reaches a backend: when AOTAutograd runs Dynamo's graph, it traces the mods to programs and
calls the ordinary operator flashlift::attention.
"""

import copy
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch._dynamo import _trace_wrapped_higher_order_op
from torch._dynamo.variables import higher_order_ops
from torch._dynamo.variables.builder import VariableBuilder
from torch._ops import HigherOrderOperator

from flashlift._errors import UnsupportedError
from flashlift.torch._attention.attend import attend
from flashlift.torch._attention.request import Request
from flashlift.torch._attention.unfused import attend_unfused, is_unfused, refuse_dropout
from flashlift.torch._internals import disable_modes, hides_open_sizes
from flashlift.torch._mods import Leaves
from flashlift.torch._program import LARGEST_ARGUMENT
from flashlift.torch._run.graphs import prepare_inductor
from flashlift.torch._trace import IndexByTensors, Trace, as_tensor, hint_of, open_size_error, trace

_NAME = "flashlift_flex_attention"


class _FlexAttention(HigherOrderOperator):
    def __init__(self) -> None:
        super().__init__(_NAME)

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        score_mod: Any,
        block_mask: tuple,
        scale: float,
        options: dict[str, Any],
        score_captures: tuple = (),
        mask_captures: tuple = (),
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        prepare_inductor()
        sinks = block_mask[0] if options["sinks"] else None
        seed = block_mask[1] if options["dropout_p"] else None
        given_scale: Any = scale if options["scale"] else None
        if is_unfused(query, value):
            if options["dropout_p"]:
                refuse_dropout(query, value)
            mods = _with(score_mod, score_captures), _with(block_mask[-1], mask_captures)
            return attend_unfused(query, key, value, *mods, given_scale, sinks)
        # A scale that may change is an argument of the program, in place of a captured number.
        is_constant = given_scale is None or isinstance(given_scale, (int, float))
        factor, constant = (None, given_scale) if is_constant else (given_scale, 1.0)
        programs = [
            _trace_graph(score_mod, "score_mod", list(score_captures), factor),
            _trace_graph(block_mask[-1], "mask_mod", list(mask_captures)),
        ]
        request = Request(
            query,
            key,
            value,
            constant,
            sinks,
            options["want_max"],
            options["dropout_p"],
            seed,
            options["deterministic"],
        )
        with hides_open_sizes():
            out, lse, maximum = attend(request, programs)
        return out, lse, lse if maximum is None else maximum


def _with(graph: Any, captures: tuple) -> Any:
    return lambda *scalars: graph(*scalars, *captures)


def _trace_graph(graph: Any, kind: str, captured: list, factor: Any = None) -> tuple[Trace, Leaves]:
    """The trace of a mod that Dynamo turned into a graph, called with the score times `factor`. Numbers that the mod
    captures are symbols of Dynamo's; where possible they become arguments of the program."""
    graph = _without_assertions(graph)
    floats = _read_floats(graph, len(captured))
    captured = [one.item() if i in floats else one for i, one in enumerate(captured)]
    # Not the call of a GraphModule, which prints errors before it raises them: some attempts are meant to fail.
    mod = graph.forward if isinstance(graph, torch.fx.GraphModule) else graph
    if factor is not None:
        mod, captured = _of_product(mod), [*captured, factor]
    found, leaves = _trace_any_content(mod, kind, captured, floats)
    reads_sizes = _reads_sizes(graph)
    if found.has_open_sizes and reads_sizes:
        raise open_size_error("")
    if found.depends_on_sizes or reads_sizes:
        for one in leaves.tensors:
            _ = [int(size) for size in one.shape]  # Dynamo compiles again for other sizes
    return found, leaves


def _trace_any_content(mod: Any, kind: str, captured: list, floats: Any) -> tuple[Trace, Leaves]:
    """Tries other content if the mod refuses one: it may divide by a captured integer, invert a captured matrix, or
    read the last positive number."""
    first: Exception | None = None
    for content in (_zeros, _ones, _mixed):
        try:
            return _trace_captures(mod, kind, captured, floats, content)
        except UnsupportedError:
            raise
        except (RuntimeError, IndexError) as error:
            first = first or error
    assert first is not None, "every content was refused"
    raise first


def _zeros(sizes: list[int], dtype: torch.dtype) -> torch.Tensor:
    """As indices, these are in range."""
    return torch.zeros((), dtype=dtype, device="cpu").expand(sizes)


def _ones(sizes: list[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.ones((), dtype=dtype, device="cpu").expand(sizes)


def _mixed(sizes: list[int], dtype: torch.dtype) -> torch.Tensor:
    """Different numbers of both signs. Matrices can be inverted, and have a Cholesky decomposition."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return _ones(sizes, dtype)
    generator = torch.Generator("cpu").manual_seed(0)
    made = torch.rand(sizes, generator=generator, device="cpu") * 2 - 1
    if len(sizes) > 1:
        made = made + 2 * max(sizes[-2:]) * torch.eye(*sizes[-2:], device="cpu")
    return made.to(dtype)


def _trace_captures(mod: Any, kind: str, captured: list, floats: Any, content: Callable) -> tuple[Trace, Leaves]:
    """content: makes that of the tensors in place of the captured ones, for their sizes and type."""
    is_tensor = [isinstance(one, torch.Tensor) for one in captured]
    tensors, numbers = _divided(captured, is_tensor)
    stand_ins = [
        _stand_in(one, content) if whole else _number(one) for one, whole in zip(captured, is_tensor, strict=True)
    ]
    if numbers:
        leaves, symbols = _divided(stand_ins, is_tensor)
        try:
            found = trace(lambda *scalars: mod(*scalars, *stand_ins), kind, leaves, (), symbols, content_is_known=False)
        except Exception:  # any error is raised again when the numbers are constants of the program
            values: list[Any] = [None if whole else _fixed(one) for one, whole in zip(captured, is_tensor, strict=True)]
            with disable_modes():
                values = [as_tensor(one) if i in floats else one for i, one in enumerate(values)]
            fixed = [new if one is None else one for new, one in zip(stand_ins, values, strict=True)]
            numbers = []
            found = trace(lambda *scalars: mod(*scalars, *fixed), kind, leaves, content_is_known=False)
    else:
        found = trace(mod, kind, [], stand_ins, content_is_known=False)
    return found, Leaves(tensors, numbers)


def _of_product(mod: Any) -> Callable[..., torch.Tensor]:
    """The mod, applied to the score times the last argument."""
    return lambda score, *rest: mod(score * rest[-1], *rest[:-1])


def _divided(values: list, is_tensor: list[bool]) -> tuple[list, list]:
    pairs = list(zip(values, is_tensor, strict=True))
    return [one for one, whole in pairs if whole], [one for one, whole in pairs if not whole]


def _nodes(graph: Any) -> Iterable[torch.fx.Node]:
    return graph.graph.nodes if isinstance(graph, torch.fx.GraphModule) else ()


def _without_assertions(graph: Any) -> Any:
    """The graph without conditions on sizes that depend on content, which Dynamo adds after it has seen the call."""
    assertions = [node for node in _nodes(graph) if node.target is torch.ops.aten._assert_scalar.default]
    if not assertions:
        return graph
    graph = copy.deepcopy(graph)
    for node in reversed(graph.graph.nodes):
        if node.target is torch.ops.aten._assert_scalar.default:
            graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _read_floats(graph: Any, count: int) -> frozenset[int]:
    """Which of a graph's last `count` arguments, tensors that a mod captures, the graph reads as numbers by item()."""
    nodes = _nodes(graph)
    arguments = [node for node in nodes if node.op == "placeholder"]
    captured = arguments[len(arguments) - count :]
    reads = {node.args[0] for node in nodes if node.op == "call_method" and node.target == "item"}
    return frozenset(i for i, node in enumerate(captured) if node in reads)


def _reads_sizes(graph: Any) -> bool:
    """Whether a graph reads the size of a tensor. torch.compile gives it such sizes as arguments; strict torch.export
    does not, so that those of the first call would become constants."""
    return any(
        node.target in ("size", "numel", "__len__", len, torch.ops.aten.sym_size.int, torch.ops.aten.sym_numel.default)
        for node in _nodes(graph)
    )


def _fixed(symbol: Any) -> int | float:
    """The number that a symbol stands for. Dynamo compiles again if the number changes."""
    return float(symbol) if isinstance(symbol, (float, torch.SymFloat)) else int(symbol)


def _number(symbol: Any) -> torch.Tensor:
    """A replacement for a number. The value of a number that a graph computes is unknown; programs depend only on
    whether it is large."""
    is_symbol = isinstance(symbol, (torch.SymInt, torch.SymFloat))
    number = symbol.node.hint if is_symbol else symbol
    if number is None:
        number = 1.0 if isinstance(symbol, torch.SymFloat) else LARGEST_ARGUMENT + 1
    elif isinstance(symbol, torch.SymInt):
        _ = bool(abs(cast(int, symbol)) <= LARGEST_ARGUMENT)  # Dynamo compiles again if this changes
    with disable_modes():
        return as_tensor(number)


def _stand_in(tensor: torch.Tensor, content: Callable) -> torch.Tensor:
    """A tensor of this shape with any content: that of captured tensors is unknown while a graph is compiled. Sizes
    that may change are those of the first call."""
    sizes = [hint_of(size) for size in tensor.shape]
    with disable_modes():  # a plain tensor, not a fake one
        made = content(sizes, tensor.dtype)
        # Whether the captured tensor needs a gradient may differ from call to call.
        return made.requires_grad_() if made.is_floating_point() else made


flex_attention_hop = _FlexAttention()


class _Variable(higher_order_ops.FlexAttentionHigherOrderVariable):
    _HOP_NAME = "flashlift.torch.flex_attention"

    def create_wrapped_node(self, *args: Any, **kwargs: Any) -> Any:
        """With our indexing in place of Dynamo's, which takes neither table[..., h] nor table[h, :], and
        table[[0, 2], h] for table[0, 2, h]; and with floats that other graphs can read, too. Dynamo compiles in one
        thread at a time."""
        its_own = _trace_wrapped_higher_order_op.TransformGetItemToIndex, VariableBuilder.wrap_symfloat
        _trace_wrapped_higher_order_op.TransformGetItemToIndex = IndexByTensors  # type: ignore
        VariableBuilder.wrap_symfloat = _wrap_symfloat_in_whole_graph  # type: ignore
        try:
            return super().create_wrapped_node(*args, **kwargs)
        finally:
            _trace_wrapped_higher_order_op.TransformGetItemToIndex, VariableBuilder.wrap_symfloat = its_own  # type: ignore


_wrap_symfloat = VariableBuilder.wrap_symfloat


def _wrap_symfloat_in_whole_graph(builder: Any, value: float) -> Any:
    """Makes an argument of a float that may change. Dynamo makes it in the graph of the mod that reads it first, and
    then fails if another mod, another layer's attention or the code after the call reads the same float."""
    output = builder.tx.output
    output.tracers.append(output.root_tracer)
    try:
        return _wrap_symfloat(builder, value)
    finally:
        output.tracers.pop()


higher_order_ops._hop_name_to_variable_class[_NAME] = _Variable


def flex_attention_in_graph(
    request: Request, score_mod: Any, mask_mod: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What Dynamo traces: (out, lse, maximum, or anything if that is not wanted)."""
    query, key, value, scale, sinks, want_max, dropout_p, seed, deterministic = request
    options = {
        "sinks": sinks is not None,
        "want_max": want_max,
        "scale": scale is not None,
        "dropout_p": dropout_p,
        "deterministic": deterministic,
    }
    tensors = query if sinks is None else sinks, query if seed is None else seed
    block_mask = (*tensors, _keep_all if mask_mod is None else mask_mod)
    # Not `or`: torch 2.9 cannot convert a method to bool.
    score_mod = _same_score if score_mod is None else _of_copy(score_mod)
    return flex_attention_hop(query, key, value, score_mod, block_mask, 0.0 if scale is None else scale, options)


def _same_score(
    score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor
) -> torch.Tensor:
    return score


def _of_copy(score_mod: Any) -> Any:
    """The score_mod, called with a copy of the score, which it may change in place: Dynamo's score is a leaf of
    autograd's graph, where PyTorch refuses that. Dynamo's has the type of the query, too, where ours is float32. The
    mod may return a number, which Dynamo refuses if it is a float."""

    def of_copy(
        score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor
    ) -> torch.Tensor:
        copied = score.clone() if score.dtype == torch.float64 else score.clone().float()
        result = score_mod(copied, b, h, q, kv)
        return copied.new_full((), result) if isinstance(result, float) else result

    return of_copy


def _keep_all(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
    return b.new_ones((), dtype=torch.bool)
