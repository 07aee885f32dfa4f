"""Attacks on the command line: arguments, environment, limits, and files where it reads and writes."""

from attack import ANY, REFUSED, SUCCESS, Attack, command

PROBLEM = "attn h1 s64 d8 causal"

# What no number is, or none that an option takes. Each of the lists below says which of them it does take.
NUMBERS = [
    "", " ", "nan", "NaN", "inf", "-inf", "infinity", "-1", "-0.5", "0", "1", "1.5", "1e30", "1e999", "-1e999", "0x10",
    "0b1", "1_000", "１", "٣", "½", "1,5", "1.5.2", "18446744073709551615", "18446744073709551616",
    "9223372036854775807", "9223372036854775808", "-9223372036854775809", "9" * 1000, "1;true", "%s%n", "{}", "\n", "+1",
    "01", "1e-400", "null", "--json", "1 ", " 1", "1\t", "\x1b[31m1", "1e", "e1", ".", "-", "--",
]  # fmt: skip


# Other spellings of a number that a parser may know.
SPELLINGS = {"01", "+1", "0x10", "0b1", "1_000", "1 ", " 1", "1\t"}


def numbers() -> list[Attack]:
    """Every option that takes a number, with each of NUMBERS."""
    seconds = {"0", "1", "1.5", "1e-400"}
    seeds = {"0", "1", "18446744073709551615", "9223372036854775807", "9223372036854775808"}
    draw = ["draw", PROBLEM, "-o", "out"]
    table = [
        (["run", PROBLEM], "--seconds", seconds),
        (["bench", PROBLEM], "--seconds", seconds),
        (["run", PROBLEM, "--seconds=0"], "--seed", seeds),
        (["explain", PROBLEM], "--seed", seeds),
        (draw, "--seed", seeds),
        (draw, "--batch", {"0"}),
        (draw, "--head", {"0"}),
        (draw, "--q-tile", {"1"}),
        (draw, "--kv-tile", {"1"}),
    ]
    attacks = []
    for arguments, option, taken in table:
        for number in NUMBERS:
            attacks.append(
                command(
                    f"{arguments[0]} {option}={number[:30]!r}",
                    *arguments,
                    f"{option}={number}",
                    codes=ANY if number in SPELLINGS or number == "1e-400" else SUCCESS if number in taken else REFUSED,
                    written=["out"],
                    short=number in ("nan", "-1", "18446744073709551616"),
                )
            )
    return attacks


def attacks() -> list[Attack]:
    return numbers()
