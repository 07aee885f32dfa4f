"""Flashlift's errors as exceptions. Each is also the built-in exception that a Python user would expect."""


class FlashliftError(Exception):
    """What was expected, what came, what to do."""


class InvalidArgumentError(FlashliftError, ValueError):
    """The caller's input is wrong: a shape, an element type, a malformed text."""


class UnsupportedError(FlashliftError, NotImplementedError):
    """The input is right, but no implementation can do it."""


class NotFoundError(FlashliftError, LookupError):
    """A file, a device or a library is missing."""


class InternalError(FlashliftError, RuntimeError):
    """A defect of Flashlift, or memory ran out."""


# By FlashliftErrorCode.
BY_CODE = {1: InvalidArgumentError, 2: UnsupportedError, 3: NotFoundError, 4: InternalError}


def counted(count: int, one: str) -> str:
    """For messages: "1 array", "3 arrays"."""
    return f"{count} {one}{'' if count == 1 else 's'}"
