"""Elementwise ATen operations on program values. Operands come promoted to one type, as torch promotes them; results
are rounded or wrapped to the torch type by the caller."""

import functools
import json
import math
from collections.abc import Callable

from flashlift._library import core
from flashlift.torch._program import Builder, Node

Compute = Callable[..., Node]


def _simple(op: str) -> Compute:
    return lambda builder, *nodes: builder.emit(op, *nodes)


def _with_alpha(op: str) -> Compute:
    def compute(builder: Builder, x: Node, y: Node, alpha: float = 1) -> Node:
        if x.type == "i1":
            return builder.emit("or", x, y) if alpha else x
        return builder.emit(op, x, y if alpha == 1 else builder.emit("mul", y, builder.constant(alpha, y.type)))

    return compute


def _reversed_sub(builder: Builder, x: Node, y: Node, alpha: float = 1) -> Node:
    return _with_alpha("sub")(builder, y, x, alpha)


def _multiply(builder: Builder, x: Node, y: Node) -> Node:
    return builder.emit("and" if x.type == "i1" else "mul", x, y)


def _divide(builder: Builder, x: Node, y: Node, rounding_mode: str | None = None) -> Node:
    if rounding_mode == "floor":
        return _floor_divide(builder, x, y)
    quotient = builder.emit("div", x, y)
    return _truncate(builder, quotient) if rounding_mode == "trunc" else quotient


def _floor_divide(builder: Builder, x: Node, y: Node) -> Node:
    if x.type == "f32":
        quotient = builder.emit("div", x, y)
        down = builder.emit("floor", quotient)
        if y.op == "constant" and math.frexp(y.payload)[0] in (0.5, -0.5):
            return down  # the quotient by a power of 2 is exact
        # 1 // 0.1 is 9, but the quotient is rounded up to 10: the remainder is then nearly the divisor.
        down = _below_zero(builder, x, y, quotient, down)
        rest = builder.emit("abs", _remainder(builder, x, y))
        is_near = builder.emit("gt", _scaled(builder, rest, 2.0), builder.emit("abs", y))
        is_rounded_up = builder.emit("and", is_near, builder.emit("eq", down, quotient))
        one, none = builder.constant(1.0, "f32"), builder.constant(0.0, "f32")
        return builder.emit("sub", down, builder.emit("select", is_rounded_up, one, none))
    return x if y.op == "constant" and y.payload == 1 else builder.emit("floor_div", x, y)


def _below_zero(builder: Builder, x: Node, y: Node, quotient: Node, down: Node) -> Node:
    """The integer below a quotient: -1 and not 0 where the quotient is a negative number that is rounded to 0, as any
    number by infinity is."""
    if y.op == "constant" and math.isfinite(y.payload):
        return down
    zero = builder.constant(0.0, "f32")
    differs = builder.emit("xor", builder.emit("lt", x, zero), builder.emit("lt", y, zero))
    is_rounded = builder.emit("and", builder.emit("eq", quotient, zero), builder.emit("ne", x, zero))
    below = builder.emit("and", is_rounded, differs)
    return builder.emit("select", below, builder.constant(-1.0, "f32"), down)


def _remainder(builder: Builder, x: Node, y: Node) -> Node:
    if x.type != "f32":
        return builder.emit("mod", x, y)
    # The remainder of truncation is exact. Where its sign differs from that of y, it is corrected.
    rest = builder.emit("rem", x, y)
    zero = builder.constant(0.0, "f32")
    differs = builder.emit("xor", builder.emit("lt", rest, zero), builder.emit("lt", y, zero))
    wrong = builder.emit("and", builder.emit("ne", rest, zero), differs)
    return builder.emit("select", wrong, builder.emit("add", rest, y), rest)


def _truncate(builder: Builder, x: Node) -> Node:
    if x.type != "f32":
        return x
    down = builder.emit("floor", builder.emit("abs", x))
    negative = builder.emit("lt", x, builder.constant(0.0, "f32"))
    return builder.emit("select", negative, builder.emit("neg", down), down)


def _rounded(op: str) -> Compute:
    return lambda builder, x: x if x.type != "f32" else builder.emit(op, x)


def _round(builder: Builder, x: Node, decimals: int = 0) -> Node:
    if not decimals or x.type != "f32":
        return _rounded("round_even")(builder, x)
    factor = builder.constant(10.0 ** abs(decimals), "f32")
    there, back = ("mul", "div") if decimals > 0 else ("div", "mul")
    return builder.emit(back, builder.emit("round_even", builder.emit(there, x, factor)), factor)


def _repeated_product(builder: Builder, x: Node, count: int) -> Node:
    if count <= 1:
        return x if count else builder.constant(1, x.type)
    half = _repeated_product(builder, x, count // 2)
    whole = builder.emit("mul", half, half)
    return builder.emit("mul", whole, x) if count % 2 else whole


def _integer_power(builder: Builder, x: Node, y: Node) -> Node:
    """Computed from the exponent's bits. A negative exponent gives the integer part of the power, which is 0 except for
    bases 1 and -1."""
    zero, one = builder.constant(0, y.type), builder.constant(1, y.type)
    result, square = builder.constant(1, x.type), x
    for bit in range(6):
        bits = builder.emit("and", builder.emit("shr", y, builder.constant(bit, y.type)), one)
        result = builder.emit("select", builder.emit("ne", bits, zero), builder.emit("mul", result, square), result)
        square = builder.emit("mul", square, square)
    is_unit = builder.emit("eq", builder.emit("abs", x), builder.constant(1, x.type))
    whole = builder.emit("select", is_unit, result, builder.constant(0, x.type))
    # From an exponent of 64 on, powers of even numbers are 0 in 64 bits.
    is_odd = builder.emit("eq", builder.emit("and", x, builder.constant(1, x.type)), builder.constant(1, x.type))
    fits = builder.emit("or", is_odd, builder.emit("lt", y, builder.constant(64, y.type)))
    result = builder.emit("select", fits, result, builder.constant(0, x.type))
    return builder.emit("select", builder.emit("lt", y, zero), whole, result)


def first_extreme(builder: Builder, op: str, x: Node, y: Node) -> Node:
    """The minimum or maximum, whose whole gradient goes to x where both are equal, and not half of it to each."""
    is_first = builder.emit("ge" if op == "max" else "le", x, y)
    return builder.emit("select", is_first, x, builder.emit(op, x, y))


def limited(builder: Builder, op: str, x: Node, limit: Node, *, passes: bool) -> Node:
    """The minimum or maximum of x and a limit, which x passes its gradient through at the limit itself, or not.

    A parameter may start at a limit; a score is at 0 where a row of queries or keys is, and at no other limit: it is a
    sum of products. Elsewhere one operation does.
    """
    if x.type == "i1":
        return builder.emit("or" if op == "max" else "and", x, limit)
    followed = builder.follows(x) | builder.follows(limit)
    if "load" not in followed and not ("score" in followed and limit.op == "constant" and limit.payload == 0):
        return builder.emit(op, x, limit)
    if limit.op != "constant" or limit.payload != limit.payload:
        return first_extreme(builder, op, x, limit)  # gives NaN for a limit of NaN, too
    beyond = ("lt" if passes else "le") if op == "max" else ("gt" if passes else "ge")
    return builder.emit("select", builder.emit(beyond, x, limit), limit, x)


def _extreme(op: str, of_booleans: str) -> Compute:
    return lambda builder, x, y: builder.emit(of_booleans if x.type == "i1" else op, x, y)


def _power(builder: Builder, x: Node, y: Node) -> Node:
    is_known = y.op == "constant" and (y.payload in range(1, 5) if x.type == "f32" else y.payload >= 0)
    if is_known:
        return _repeated_product(builder, x, int(y.payload))
    if x.type != "f32":
        return _integer_power(builder, x, y)
    if y.op == "constant" and y.payload == 0.5:
        return builder.emit("sqrt", x)
    return builder.emit("pow", x, y)


def _logical(op: str) -> Compute:
    return lambda builder, *nodes: builder.emit(op, *(builder.convert(node, "i1") for node in nodes))


def _is_nan(builder: Builder, x: Node) -> Node:
    return builder.emit("ne", x, x) if x.type == "f32" else builder.constant(False, "i1")


def _is_inf(builder: Builder, x: Node) -> Node:
    if x.type != "f32":
        return builder.constant(False, "i1")
    return builder.emit("eq", builder.emit("abs", x), builder.constant(math.inf, "f32"))


def _is_finite(builder: Builder, x: Node) -> Node:
    return builder.emit("is_finite", x) if x.type == "f32" else builder.constant(True, "i1")


def _sign(builder: Builder, x: Node) -> Node:
    return x if x.type == "i1" else builder.emit("sign", x)


def _scaled(builder: Builder, x: Node, factor: float) -> Node:
    return builder.emit("mul", x, builder.constant(factor, "f32"))


def _hyperbolic(exponential: str, op: str) -> Compute:
    def compute(builder: Builder, x: Node) -> Node:
        grown, shrunk = builder.emit(exponential, x), builder.emit(exponential, builder.emit("neg", x))
        return _scaled(builder, builder.emit(op, grown, shrunk), 0.5)

    return compute


def _odd(of_size: Callable[[Builder, Node], Node]) -> Compute:
    """An odd function from its values for positive numbers. Selections and not abs and sign, whose slopes at 0 are 0:
    a parameter that starts at 0 would stay there."""

    def compute(builder: Builder, x: Node) -> Node:
        is_negative = builder.emit("lt", x, builder.constant(0.0, "f32"))
        whole = of_size(builder, builder.emit("select", is_negative, builder.emit("neg", x), x))
        return builder.emit("select", is_negative, builder.emit("neg", whole), whole)

    return compute


@_odd
def _arctangent(builder: Builder, size: Node) -> Node:
    """Cephes' atanf: the argument reduced twice, then a polynomial; 2 units in the last place."""

    def constant(number: float) -> Node:
        return builder.constant(number, "f32")

    large = builder.emit("gt", size, constant(2.414213562373095))
    middle = builder.emit("gt", size, constant(0.4142135623730951))
    inverse = builder.emit("div", constant(-1.0), builder.emit("max", size, constant(1.0)))
    one = constant(1.0)
    quotient = builder.emit("div", builder.emit("sub", size, one), builder.emit("add", size, one))
    reduced = builder.emit("select", large, inverse, builder.emit("select", middle, quotient, size))
    base = builder.emit("select", middle, constant(math.pi / 4), constant(-0.0))
    base = builder.emit("select", large, constant(math.pi / 2), base)
    square = builder.emit("mul", reduced, reduced)
    series = constant(8.05374449538e-2)
    for coefficient in (-1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1):
        series = builder.emit("add", builder.emit("mul", series, square), constant(coefficient))
    small = builder.emit("add", builder.emit("mul", builder.emit("mul", series, square), reduced), reduced)
    return builder.emit("add", base, small)


def _is_negative(builder: Builder, x: Node) -> Node:
    """Tests the sign bit."""
    if x.type == "i1":
        return builder.constant(False, "i1")
    bits = x if x.type != "f32" else builder.node("bitcast_i32", "i32", (x,))
    return builder.emit("lt", bits, builder.constant(0, bits.type))


def _angle(builder: Builder, y: Node, x: Node) -> Node:
    """Of the origin, which has no slope, the gradient is 0, as in torch, and not NaN."""
    angle = builder.emit("atan2", y, x)
    if not builder.follows(angle):
        return angle
    zero = builder.constant(0.0, "f32")
    is_origin = builder.emit("and", builder.emit("eq", y, zero), builder.emit("eq", x, zero))
    return builder.emit("select", is_origin, builder.detached(angle), angle)


def _over_square_root(builder: Builder, x: Node) -> Node:
    """x / sqrt(1 - x²), whose arctangent is the arcsine of x."""
    one = builder.constant(1.0, "f32")
    rest = builder.emit("mul", builder.emit("sub", one, x), builder.emit("add", one, x))
    return builder.emit("div", x, builder.emit("sqrt", rest))


def _arcsine(builder: Builder, x: Node) -> Node:
    return _arctangent(builder, _over_square_root(builder, x))


def _arccosine(builder: Builder, x: Node) -> Node:
    return builder.emit("sub", builder.constant(math.pi / 2, "f32"), _arcsine(builder, x))


@_odd
def _area_sine(builder: Builder, size: Node) -> Node:
    """The inverse hyperbolic sine, computed by log1p without a difference of large numbers, for either sign. Beyond
    2**60, whose square is finite, it grows as the logarithm."""
    one, limit = builder.constant(1.0, "f32"), builder.constant(2.0**60, "f32")
    beyond = builder.emit("log", _scaled(builder, builder.emit("max", size, limit), 2.0**-60))
    size = builder.emit("min", size, limit)
    square = builder.emit("mul", size, size)
    root = builder.emit("add", one, builder.emit("sqrt", builder.emit("add", one, square)))
    within = builder.emit("log1p", builder.emit("add", size, builder.emit("div", square, root)))
    return builder.emit("add", within, beyond)


def _area_cosine(builder: Builder, x: Node) -> Node:
    one = builder.constant(1.0, "f32")
    rest = builder.emit("sub", x, one)
    # Not the root of the product, which is positive below -1.
    root = builder.emit("mul", builder.emit("sqrt", rest), builder.emit("sqrt", builder.emit("add", x, one)))
    return builder.emit("log1p", builder.emit("add", rest, root))


def _area_tangent(builder: Builder, x: Node) -> Node:
    both = [builder.emit("log1p", one) for one in (x, builder.emit("neg", x))]
    return _scaled(builder, builder.emit("sub", *both), 0.5)


def _leaky_relu(builder: Builder, x: Node, negative_slope: float = 0.01) -> Node:
    positive = builder.emit("gt", x, builder.constant(0.0, "f32"))
    return builder.emit("select", positive, x, _scaled(builder, x, negative_slope))


def _gelu(builder: Builder, x: Node, approximate: str = "none") -> Node:
    if approximate == "tanh":
        cube = builder.emit("mul", builder.emit("mul", x, x), x)
        inner = _scaled(builder, builder.emit("add", x, _scaled(builder, cube, 0.044715)), math.sqrt(2 / math.pi))
        gate = builder.emit("tanh", inner)
    else:
        gate = builder.emit("erf", _scaled(builder, x, math.sqrt(0.5)))
    return builder.emit("mul", _scaled(builder, x, 0.5), builder.emit("add", builder.constant(1.0, "f32"), gate))


def _softplus(builder: Builder, x: Node, beta: float = 1, threshold: float = 20) -> Node:
    scaled = _scaled(builder, x, beta)
    smooth = _scaled(builder, builder.emit("log1p", builder.emit("exp", scaled)), 1 / beta)
    return builder.emit("select", builder.emit("gt", scaled, builder.constant(threshold, "f32")), x, smooth)


def _log_sigmoid(builder: Builder, x: Node) -> Node:
    small = builder.emit("exp", builder.emit("neg", builder.emit("abs", x)))
    return builder.emit("sub", builder.emit("min", x, builder.constant(0.0, "f32")), builder.emit("log1p", small))


@functools.cache
def _of_table(kinds: tuple[str, ...], operands: int) -> dict[str, str]:
    """The ATen functions that are exactly one operation, each with the operation's name, from the table of
    operations."""
    rows = json.loads(core().flashlift_operations())
    wanted = [row for row in rows if row["kind"] in kinds and row["operands"] == operands]
    return {name: row["name"] for row in wanted for name in row["aten"].split()}


_COMPUTING = ("arithmetic", "integer", "bits", "function")

BINARY: dict[str, Compute] = {
    "add": _with_alpha("add"),
    "sub": _with_alpha("sub"),
    "subtract": _with_alpha("sub"),
    "rsub": _reversed_sub,
    "mul": _multiply,
    "multiply": _multiply,
    "div": _divide,
    "divide": _divide,
    "true_divide": _divide,
    "floor_divide": _floor_divide,
    "remainder": _remainder,
    "pow": _power,
    **{name: _simple(op) for name, op in _of_table(_COMPUTING, 2).items()},
    "atan2": _angle,
    "arctan2": _angle,
    "maximum": _extreme("max", "or"),
    "minimum": _extreme("min", "and"),
}

UNARY: dict[str, Compute] = {
    "sign": _sign,
    "sgn": _sign,
    "floor": _rounded("floor"),
    "ceil": _rounded("ceil"),
    "trunc": _truncate,
    "fix": _truncate,
    "round": _round,
    "frac": lambda builder, x: builder.emit("sub", x, _truncate(builder, x)),
    "square": lambda builder, x: _multiply(builder, x, x),
    "log10": lambda builder, x: _scaled(builder, builder.emit("log", x), 1 / math.log(10)),
    "reciprocal": lambda builder, x: builder.emit("div", builder.constant(1.0, "f32"), x),
    "tan": lambda builder, x: builder.emit("div", builder.emit("sin", x), builder.emit("cos", x)),
    "sinh": _hyperbolic("expm1", "sub"),  # e^x - e^-x loses precision near 0
    "cosh": _hyperbolic("exp", "add"),
    "atan": _arctangent,
    "arctan": _arctangent,
    "asin": _arcsine,
    "acos": _arccosine,
    "asinh": _area_sine,
    "acosh": _area_cosine,
    "atanh": _area_tangent,
    "erfc": lambda builder, x: builder.emit("sub", builder.constant(1.0, "f32"), builder.emit("erf", x)),
    "relu": lambda builder, x: limited(builder, "max", x, builder.constant(0, x.type), passes=False),
    "leaky_relu": _leaky_relu,
    "silu": lambda builder, x: builder.emit("mul", x, builder.emit("sigmoid", x)),
    "gelu": _gelu,
    "softplus": _softplus,
    "log_sigmoid": _log_sigmoid,
    **{name: _simple(op) for name, op in _of_table(_COMPUTING, 1).items()},
}


def _comparison(op: str) -> Compute:
    def compute(builder: Builder, x: Node, y: Node) -> Node:
        if x.type == "i1" and op not in ("eq", "ne"):  # programs compare only numbers by order
            x, y = builder.convert(x, "i32"), builder.convert(y, "i32")
        return builder.emit(op, x, y)

    return compute


COMPARISONS: dict[str, Compute] = {
    **{name: _comparison(op) for name, op in _of_table(("comparison",), 2).items()},
    "logical_and": _logical("and"),
    "logical_or": _logical("or"),
    "logical_xor": _logical("xor"),
}

PREDICATES: dict[str, Compute] = {
    "isnan": _is_nan,
    "isinf": _is_inf,
    "isfinite": _is_finite,
    "signbit": _is_negative,
    "prims::signbit": _is_negative,
    "logical_not": lambda builder, x: builder.emit("not", builder.convert(x, "i1")),
}
