"""Mods found again: which tensors a Python function captures, and its trace, kept for functions of the same structure.

Two functions have the same structure if they have the same code and captured equal things: tensors of the same shape
and type, functions of the same structure. A function of the same structure gives the same program, whatever object it
is and whatever its tensors hold.

Numbers become part of the program at first: a compiler makes more of a window of 256 than of a window that a call
brings. A number that turns out to differ from call to call is then made an argument, so that the hundredth window
compiles nothing. Where a mod needs it as a number, to count a loop or to shape a tensor, it stays what it was.

A function that reads what may change without a trace, such as an array of numpy or a set, is traced in each call.

A function whose numbers were met before gets the trace that it got then. torch.utils.checkpoint runs a forward pass
again in the backward pass, and it has to save the same tensors: those that the program reads.

A walk (walk, objects) finds the structure, a copy (copy) has tensors in the places of numbers, and the traces are kept
by structure (families).
"""

from flashlift.torch._mods.families import Leaves, traced

__all__ = ["Leaves", "traced"]
