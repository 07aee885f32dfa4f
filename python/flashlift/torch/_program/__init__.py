"""Score programs: a graph (graph), bounds of its integers (bounds) and its text (text)."""

from flashlift.torch._program.bounds import Bounds, coordinates_of, reach_of
from flashlift.torch._program.graph import DTYPE_NAMES, LARGEST_ARGUMENT, Builder, Capture, Node, type_of
from flashlift.torch._program.text import print_program

__all__ = [
    "DTYPE_NAMES",
    "LARGEST_ARGUMENT",
    "Bounds",
    "Builder",
    "Capture",
    "Node",
    "coordinates_of",
    "print_program",
    "reach_of",
    "type_of",
]
