"""The limit of the programs that mods record."""

from flashlift._errors import InvalidArgumentError

_LARGEST_PROGRAM = 4096  # nodes: kMaxProgramNodes
# What a mod computes and does not use is left out of its program, but this is known only at the end. No mod in use
# computes this much in vain.
_LARGEST_RECORDING = 4 * _LARGEST_PROGRAM


def check_recorded(count: int) -> None:
    """Ends the recording of a mod that has too many operations, which would otherwise go on for minutes."""
    if count > _LARGEST_RECORDING:
        raise InvalidArgumentError(
            f"a program has at most {_LARGEST_PROGRAM} nodes, and this function records more: use shorter loops, "
            "or read what they compute from a captured tensor"
        )
