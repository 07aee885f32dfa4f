"""Traced programs run as one attention."""

import math

import torch

from flashlift.torch._attention.request import Request
from flashlift.torch._mods import Leaves
from flashlift.torch._program import Bounds
from flashlift.torch._run.autograd import without_gradient
from flashlift.torch._run.call import Call
from flashlift.torch._run.dispatch import call_kernel
from flashlift.torch._trace import Trace


def attend(
    request: Request, programs: list[tuple[Trace, Leaves]]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Runs traced programs: (out, lse, max_scores or None)."""
    query, key, value, scale, sinks, want_max, dropout_p, seed, deterministic = request
    if query.size(0) != key.size(0):
        key, value = (one.expand(query.size(0), -1, -1, -1) for one in (key, value))
    sizes = dict(zip(("b", "h", "q", "kv"), (*query.shape[:3], key.shape[2]), strict=True))
    b, h, q, kv = (size if type(size) is int else None for size in sizes.values())
    bounds = Bounds(b, h, q, kv)
    features = []
    captures: list[torch.Tensor] = []
    for trace, leaves in programs:
        text, sources = trace.program(bounds)
        features.append(text)
        for source, one in zip(sources, trace.tensors(sources, *leaves, device=query.device, sizes=sizes), strict=True):
            captures.append(one if not one.requires_grad or trace.gets_gradient(source) else one.detach())
    for one in captures:
        if one.device != query.device:
            raise RuntimeError(
                f"a mod captures a tensor of shape {list(one.shape)} on {one.device}, the query is on {query.device}; "
                "expected both on one device: move the tensor"
            )
    if sinks is not None:
        sinks = (sinks if sinks.dim() == 2 else sinks.unsqueeze(1)).to(torch.float32)
        features.insert(0, f"sinks={int(sinks.shape[1])}")  # Dynamo compiles again for another number
    if not deterministic:
        features.insert(0, "nondeterministic")
    scale = 1.0 / math.sqrt(query.size(-1)) if scale is None else float(scale)
    words = " ".join([f"dropout={float(dropout_p)!r}", *features] if dropout_p else features)
    functions = [(trace.autograd_function, leaves) for trace, leaves in programs if trace.autograd_function is not None]
    if functions and torch.is_grad_enabled():
        name, leaves = functions[0]
        query, key, *captures = (without_gradient(one, name, leaves.tensors) for one in (query, key, *captures))
    in_one_pass = want_max and query.device.type == "cpu"
    call = Call(query, key, value, captures, sinks, seed, words, scale, in_one_pass)
    out, lse, maximum = call_kernel(call)
    if not want_max or in_one_pass:
        return out, lse, maximum if want_max else None
    # The row maximum is lse minus the logarithm of the sum of exponentials relative to it. That sum is the result of
    # unnormalised attention over values of 1, in float32, because probabilities are rounded to the type of the values.
    query, key = query.detach().float(), key.detach().float()
    ones = key.new_ones((1, 1, 1, 1)).expand(*key.shape[:3], 1)
    scores_only = " ".join(one for one in features if not one.startswith("sinks="))
    captures = [one.detach() for one in captures]
    sums, plain_lse, _ = call_kernel(Call(query, key, ones, captures, None, None, "unnormalized " + scores_only, scale))
    maximum = torch.where(plain_lse == -math.inf, plain_lse, plain_lse - sums.squeeze(-1).log())
    return out, lse, maximum
