"""What an attack is, and the ways to run one. A part (command_line.py, ...) has a function `attacks()` that lists its
own.

An attack is withstood if the attacked ends by itself, soon, within bounded memory, with the answer that was expected,
and leaves nothing behind.
"""

import os
import resource
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"  # run.py --build

SUCCESS, CHECK_FAILED, REFUSED = 0, 1, 2  # exit codes of the command line
ANY = (SUCCESS, REFUSED)

# Generous limits: a slow or busy machine must not look like a successful attack.
SECONDS = 60
MEGABYTES = 1500

SMALL_STACK = {resource.RLIMIT_STACK: 512 << 10}  # as in threads of pools


@dataclass(frozen=True)
class Attack:
    name: str
    run: Callable[[], str | None]
    """None where it was withstood, otherwise what happened."""
    short: bool = False
    """Whether the short run of `make test` has it."""


def command(
    name: str,
    *arguments: object,
    codes: int | Sequence[int] = REFUSED,
    words: Sequence[str] = (),
    files: Mapping[str, str | bytes] | None = None,
    written: Sequence[str] = (),
    stdin: str = "",
    environment: Mapping[str, str | None] | None = None,
    limits: Mapping[int, int] | None = None,
    seconds: float = SECONDS,
    megabytes: int = MEGABYTES,
    short: bool = False,
) -> Attack:
    """Runs the command line in a new folder that holds `files`.

    It must end with one of `codes`, and print each of `words`. Only the files `written` may be new or changed, and only
    if it succeeds. `environment` adds variables (None removes one); `limits` are for setrlimit.
    """
    codes = (codes,) if isinstance(codes, int) else codes

    def run() -> str | None:
        with tempfile.TemporaryDirectory(prefix="flashlift-hostile-") as folder:
            for path, content in (files or {}).items():
                (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
                (Path(folder) / path).write_bytes(content.encode() if isinstance(content, str) else content)
            before = _content(folder)
            ended = _run(
                [BUILD / "bin" / "flashlift", *map(str, arguments)],
                folder,
                stdin,
                environment or {},
                limits or {},
                seconds,
            )
            fault = _fault_of(ended, codes, words, megabytes, resource.RLIMIT_AS in (limits or {}))
            allowed = set(written) if ended.code == SUCCESS else set()
            changed = {path for path, content in _content(folder).items() if before.get(path) != content}
            changed |= before.keys() - _content(folder).keys()
            if not fault and changed - allowed:
                fault = f"it changed {sorted(changed - allowed)}"
            return fault

    return Attack(name, run, short)


def program(arguments: Sequence[object], seconds: float) -> str | None:
    """Runs a program that attacks from inside, in a new folder. Exit code 0 means that every attack was withstood."""
    with tempfile.TemporaryDirectory(prefix="flashlift-hostile-") as folder:
        ended = _run(list(map(str, arguments)), folder, "", {}, {}, seconds)
    last = (ended.output.splitlines() or [""])[-1]
    fault = _fault_of(ended, (SUCCESS,), (), MEGABYTES)
    return f"after {last!r}: {fault}" if fault else None


@dataclass(frozen=True)
class Ended:
    code: int | None  # None: the process had to be stopped
    output: str
    errors: str
    megabytes: float


def _run(arguments, folder, stdin, environment, limits, seconds) -> Ended:
    variables = {**os.environ, "HOME": folder, "TMPDIR": folder, **environment}
    variables = {name: value for name, value in variables.items() if value is not None}

    def restrict() -> None:
        for which, most in limits.items():
            resource.setrlimit(which, (most, most))

    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as typed:
        typed.write(stdin.encode())
        typed.seek(0)
        process = subprocess.Popen(
            arguments,
            cwd=folder,
            env=variables,
            stdin=typed,
            stdout=output,
            stderr=errors,
            preexec_fn=restrict if limits else None,
        )
        stopped = threading.Event()

        def stop() -> None:
            stopped.set()
            process.send_signal(signal.SIGKILL)

        timer = threading.Timer(seconds, stop)
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        return Ended(
            None if stopped.is_set() else process.returncode,
            output.read().decode(errors="replace"),
            errors.read().decode(errors="replace"),
            usage.ru_maxrss / 1024,
        )


def _fault_of(ended: Ended, codes, words, megabytes, starves: bool = False) -> str | None:
    """`starves`: the attack limits memory; the error may then ask whether that ran out, or this is a defect."""
    if ended.code is None:
        return "it did not end in time"
    if ended.code < 0:
        return f"signal {signal.Signals(-ended.code).name}: {ended.errors[-500:]}"
    if "defect of Flashlift" in ended.errors and not starves:
        return f"it calls itself defective: {ended.errors[:500]}"
    if ended.code not in codes:
        return f"exit code {ended.code}, expected one of {codes}: {(ended.errors or ended.output)[:500]}"
    if ended.code == REFUSED and not ended.errors.startswith("error: "):
        return f"no error message, but {ended.errors[:500]!r}"
    if ended.megabytes > megabytes:
        return f"it took {ended.megabytes:.0f} MB, expected at most {megabytes}"
    missing = [word for word in words if word not in ended.output + ended.errors]
    return f"it does not say {missing}: {(ended.errors or ended.output)[:500]}" if missing else None


def _content(folder) -> dict[str, bytes | None]:
    """The content of each file in a folder; None for anything that is not a regular file."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in Path(folder).rglob("*")
        if not path.is_dir()
    }
