"""Score programs: a graph (graph), bounds of its integers (bounds, reach) and its text (text)."""

from flashlift.torch._program.bounds import Bounds
from flashlift.torch._program.graph import DTYPE_NAMES, LARGEST_ARGUMENT, Builder, Capture, Node, type_of
from flashlift.torch._program.reach import Reach, Reaches
from flashlift.torch._program.text import print_program

__all__ = [
    "DTYPE_NAMES",
    "LARGEST_ARGUMENT",
    "Bounds",
    "Builder",
    "Capture",
    "Node",
    "Reach",
    "Reaches",
    "print_program",
    "type_of",
]
