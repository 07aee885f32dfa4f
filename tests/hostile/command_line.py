"""Attacks on the command line: arguments, environment, limits, and files where it reads and writes."""

import resource

from attack import ANY, REFUSED, SMALL_STACK, SUCCESS, Attack, command

PROBLEM = "attn h1 s64 d8 causal"

# Texts that are not numbers, and numbers that some options refuse. Each of the lists below names those that its options
# accept.
NUMBERS = [
    "", " ", "nan", "NaN", "inf", "-inf", "infinity", "-1", "-0.5", "0", "1", "1.5", "1e30", "1e999", "-1e999", "0x10",
    "0b1", "1_000", "１", "٣", "½", "1,5", "1.5.2", "18446744073709551615", "18446744073709551616",
    "9223372036854775807", "9223372036854775808", "-9223372036854775809", "9" * 1000, "1;true", "%s%n", "{}", "\n",
    "+1", "01", "1e-400", "null", "--json", "1 ", " 1", "1\t", "\x1b[31m1", "1e", "e1", ".", "-", "--",
]  # fmt: skip


# Other spellings of a number that a parser might accept.
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


def environments() -> list[Attack]:
    """Invalid values of environment variables."""
    wrong = {
        "FLASHLIFT_THREADS": ["0", "-1", "4097", "99999999999999999999", "two", "1.5", " 1", "nan"],
        "FLASHLIFT_LOG": ["loud", "DEBUG", "0", "\x1b[31m"],
        "FLASHLIFT_ISA": ["mmx", "AVX2", "avx", "0"],
        "FLASHLIFT_TUNING": ["on", "OFF", " read", "1"],
    }
    right = {
        "FLASHLIFT_THREADS": ["1", "4096"],
        "FLASHLIFT_LOG": ["error", "off"],
        "FLASHLIFT_ISA": ["avx2", "amx"],
        "FLASHLIFT_TUNING": ["off", "read", "write"],
    }
    return [
        command(
            f"{variable}={value!r}",
            *["run", PROBLEM, "--seconds=0"],
            environment={variable: value},
            codes=REFUSED if table is wrong else SUCCESS,
            words=[variable] if table is wrong else [],
            short=value in ("-1", "loud"),
        )
        for table in (wrong, right)
        for variable, values in table.items()
        for value in ["", *values]
        if value or table is right
    ]


def problems() -> list[Attack]:
    """Problems that nobody has memory or time for, and programs of the largest allowed size."""
    huge = [
        "h1 s1073741824 d8 causal", "h1 s1073741824 d8", "h64 s1073741824 d256 window=100",
        "b1073741824 h1 s1 d8 causal",
        "b1000000 h64 s128 d8 alibi", "h1 s1073741824 d8 documents=1000", "b4096 h4096 s4096 d64 bf16 alibi causal",
        "h1 sq1 skv1073741824 d8", "h1 sq1073741824 skv1 d8 mask_mod() { %0 = lt h, q; return %0 }",
    ]  # fmt: skip
    never = [
        "h1 s64 d8 sinks=1073741824", "h1 s9223372036854775807 d8", "h1 s9223372036854775808 d8", "h1 s-1 d8",
        "b9223372036854775807 h9223372036854775807 s9223372036854775807 d256", "h1 s64 d9223372036854775807",
        "h1 s64 d8 page_size=1073741824", "h1 s64 d8 window=9223372036854775807", "h1 s64 d8 documents=0",
        "h1 s64 d8 scale=1e999", "h1 s64 d8 softcap=nan", "h1 s64 d8 dropout=1", "h1 s64 d8 causal causal",
        "h1 s64 d8 causal " + "x" * 100_000,
        "h1 s1073741824 d8 bias=f32", "h1 s1048576 d8 mask=bool", "h1073741824 s64 d8 sinks=1000 lse row_max",
    ]  # fmt: skip
    steps = ["add", "mul", "pow", "max"]
    chains = {step: "".join(f"%{i} = {step} %{i - 1}, score; " for i in range(1, 4000)) for step in steps}
    programs = [f"h1 s64 d8 score_mod() {{ %0 = tanh score; {chain}return %3999 }}" for chain in chains.values()]
    return [
        *[command(f"explain {text}", "explain", f"attn {text}", codes=ANY, short=text is huge[0]) for text in huge],
        *[command(f"run {text}", "run", f"attn {text}", "--seconds=0", short=text is huge[0]) for text in huge],
        *[
            command(
                f"{what} {text[:60]}",
                what,
                f"attn {text}",
                *more,
                codes=REFUSED if what == "run" else ANY,
                short=text is never[0],
            )
            for text in never
            for what, more in {"run": ["--seconds=0"], "explain": []}.items()
        ],
        *[
            command(f"{what} 4000 times {step}", what, f"attn {text}", *more, codes=SUCCESS, limits=SMALL_STACK)
            for step, text in zip(steps, programs, strict=True)
            for what, more in {"run": ["--seconds=0", "--backward"], "explain": ["--code"]}.items()
        ],
    ]  # fmt: skip


def limits() -> list[Attack]:
    """Files that may not grow (by more than an error message, which is written to a file), and little memory."""
    name = {resource.RLIMIT_FSIZE: "files of {} bytes", resource.RLIMIT_AS: "{} bytes of memory"}
    module = "func.func @f() {\n  return\n}\n"
    return [
        command(
            f"{name[which].format(most)}, {arguments[0]}",
            *arguments,
            files={"m.mlir": module},
            limits={which: most},
            codes=ANY,
            written=["out"],
            short=most == 1000,
        )
        for which, mosts in {resource.RLIMIT_FSIZE: [1000, 10_000], resource.RLIMIT_AS: [340 << 20, 1 << 30]}.items()
        for most in mosts
        for arguments in (["fuse", "m.mlir", "-o", "out"], ["draw", PROBLEM, "-o", "out"])
    ]


def options() -> list[Attack]:
    """Invalid values for the options of the newer subcommands, and paths where no file can be."""
    module = "func.func @f() {\n  return\n}\n"
    forms = [
        "vhlo=", "vhlo=1", "vhlo=1.9", "vhlo=1.9.0.0", "vhlo=-1.9.0", "vhlo=1.9.x", "vhlo=1.9.0 ", "vhlo=999.0.0",
        "vhlo=0.8.0", "vhlo=99999999999999999999.9.0", "VHLO", "bytecode=1", " text", "x" * 100_000, "%s", "\x1b[31m",
    ]  # fmt: skip
    architectures = [
        "", "0", "-1", "9x", "90 ", "1e2", "99999999999999999999", "90;rm", "sm_", "1", "x" * 10_000, "nan", "٩٠",
    ]  # fmt: skip
    lengths = ["0", "-1", "x", "9223372036854775808", "1.5"]
    places = [".", "no/folder", "m.mlir/x", "x" * 300, "/proc/self/mem", "/dev/full"]
    cache = ["relative", "/dev/null", "/proc/nothing", "x" * 5000, "/" + "x" * 300]
    wide = "attn h1 s64 d64 bf16 bias=f32"
    return [
        *[command(f"--emit={form[:20]!r}", "fuse", "m.mlir", "-o", "out", f"--emit={form}", files={"m.mlir": module}) for form in forms],
        *[command(f"--architecture={one[:20]!r}", "compile", wide, f"--architecture={one}") for one in architectures],
        *[command(f"--q-len={one}", "compile", wide, "--architecture=90", f"--q-len={one}") for one in lengths],
        *[command(f"--gradients={one}", "compile", wide, "--architecture=90", "--backward", f"--gradients={one}") for one in ("nothing", "bias,q", "%s")],
        *[command(f"--plot={place[:20]}", "bench", PROBLEM, "--seconds=0", f"--plot={place}", files={"m.mlir": module}) for place in places],
        *[command(f"export to {place[:20]}", "cache", "export", place, files={"m.mlir": module}) for place in places],
        *[command(f"import from {place[:20]}", "cache", "import", place, files={"m.mlir": module}) for place in (*places[:4], "/dev/zero", "/proc/self/mem")],
        *[command(f"a shell named {shell!r}", "completion", shell) for shell in ("", "tcsh", "bash;ls", "BASH", "x" * 100_000)],
        *[command(f"tune --seconds={number[:30]!r}", "tune", PROBLEM, f"--seconds={number}", codes=REFUSED) for number in ("nan", "-1", "inf", "x", "", "1e999")],
        *[command(f"the cache in {folder[:20]}", "tune", PROBLEM, "--seconds=0", environment={"FLASHLIFT_CACHE_DIR": folder}) for folder in cache],
        *[command(f"run, the cache in {folder[:20]}", "run", PROBLEM, "--seconds=0", environment={"FLASHLIFT_CACHE_DIR": folder}, codes=SUCCESS) for folder in cache],
        *[command(f"NVRTC is {name}", "compile", wide, "--architecture=90", environment={"FLASHLIFT_NVRTC": name}) for name in ("x", "/dev/zero", "/dev/null", "/", "/proc/self/mem", "/etc/passwd")],
    ]  # fmt: skip


def attacks() -> list[Attack]:
    return numbers() + environments() + problems() + limits() + options()
