"""Attacks by tuning results: the database, and the JSON to which it is exported and from which it is imported.

Whatever is there, compiling works, and each command ends soon with a result or an error.
"""

import json
import os
import random
import resource
import sqlite3
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import attack
from attack import ANY, REFUSED, SUCCESS, Attack

PROBLEM = "attn h2 s64 d8 causal"
SECONDS = 60
LARGEST = 2**63 - 1


class Machine:
    """A folder with a database that holds one tuned problem."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.cache = Path(folder) / "cache"
        self.file = self.cache / "tuning.sqlite3"
        self.require(["tune", PROBLEM, "--seconds=0"], SUCCESS)
        self.require(["cache", "export", "exported"], SUCCESS)
        self.exported = json.loads((Path(folder) / "exported").read_text())

    def fault(
        self, arguments: list[str], codes: int | tuple[int, ...], *words: str, limits: Mapping[int, int] | None = None
    ) -> str | None:
        ended = attack._run(
            [attack.BUILD / "bin" / "flashlift", *arguments],
            self.folder,
            "",
            {"FLASHLIFT_CACHE_DIR": str(self.cache), "FLASHLIFT_TUNING": None},
            limits or {},
            SECONDS,
        )
        codes = (codes,) if isinstance(codes, int) else codes
        fault = attack._fault_of(ended, codes, words, attack.MEGABYTES)
        if not fault and len(ended.errors) > 10_000:
            fault = f"an error of {len(ended.errors)} bytes"
        return f"{arguments}: {fault}" if fault else None

    def require(self, arguments: list[str], codes: int) -> None:
        fault = self.fault(arguments, codes)
        if fault:
            raise AssertionError(fault)

    def sql(self, *statements: str) -> None:
        database = sqlite3.connect(self.file)
        for statement in statements:
            database.execute(statement)
        database.commit()
        database.close()


def database(
    name: str, change: Callable[[Machine], object], reads: int = REFUSED, writes: int = REFUSED, short: bool = False
) -> Attack:
    """`change` damages the database. `reads` and `writes`: how commands end that read or write it."""

    def run() -> str | None:
        with tempfile.TemporaryDirectory(prefix="flashlift-hostile-") as folder:
            machine = Machine(folder)
            kept = change(machine)  # a connection holds its locks until this is deleted
            faults = [
                machine.fault(["run", PROBLEM, "--seconds=0"], SUCCESS),
                machine.fault(["cache", "list"], reads),
                machine.fault(["cache", "list", "--json"], reads),
                machine.fault(["cache", "show"], SUCCESS),
                machine.fault(["cache", "export"], reads),
                machine.fault(["tune", PROBLEM, "--seconds=0"], writes),
                machine.fault(["cache", "import", "exported"], writes),
            ]
            if isinstance(kept, sqlite3.Connection):
                kept.close()
            faults += [
                machine.fault(["cache", "clear"], SUCCESS),
                machine.fault(["cache", "import", "exported"], SUCCESS),
                machine.fault(["cache", "list"], SUCCESS, "forward"),
            ]
            if isinstance(kept, Path) and kept.read_text() != "precious":
                faults.append("it wrote through a link")
            return next((fault for fault in faults if fault), None)

    return Attack(name, run, short)


ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"
COLUMNS = (
    "version, device, backward, problem, batch, q_len, kv_len, implementation, q_tile, kv_tile, splits, threads, ms, "
    "heuristics_ms, tuned_at"
)


def databases() -> list[Attack]:
    def sql(*statements: str) -> Callable[[Machine], None]:
        return lambda machine: machine.sql(*statements)

    def written(content: bytes, suffix: str = "") -> Callable[[Machine], None]:
        return lambda machine: Path(f"{machine.file}{suffix}").write_bytes(content) and None

    def flipped(seed: int) -> Callable[[Machine], None]:
        def change(machine: Machine) -> None:
            content = bytearray(machine.file.read_bytes())
            draw = random.Random(seed)
            for _ in range(draw.choice([1, 10, 300])):
                content[draw.randrange(100, len(content))] = draw.randrange(256)
            machine.file.write_bytes(content)

        return change

    def replaced(make: Callable[[Path], object]) -> Callable[[Machine], object]:
        def change(machine: Machine) -> object:
            machine.file.unlink()
            return make(machine.file)

        return change

    def victim(file: Path) -> Path:
        target = file.parent.parent / "victim"
        target.write_text("precious")
        file.symlink_to(target)
        return target

    def locked(machine: Machine) -> sqlite3.Connection:
        connection = sqlite3.connect(machine.file, isolation_level=None)
        connection.execute("BEGIN EXCLUSIVE")
        return connection

    noise = random.Random(1).randbytes(20_000)
    columns = ", ".join(f"x {column}" for column in COLUMNS.split(", "))
    many = f"INSERT INTO tuned {ENDLESS.replace('FROM c)', 'FROM c LIMIT 300000)')} SELECT {COLUMNS.replace('batch', 'x + 1000')} FROM tuned, c"
    types = "UPDATE tuned SET q_tile = 'many', kv_tile = x'00ff', splits = 1e300, threads = -5, batch = 'x', ms = 'nan', tuned_at = 9e18, device = NULL"
    return [
        database("a view without end", sql("DROP TABLE tuned", f"CREATE VIEW tuned AS {ENDLESS} SELECT {columns} FROM c"), short=True),
        database("a trigger without end", sql(f"CREATE TRIGGER t AFTER INSERT ON tuned BEGIN INSERT INTO tuned SELECT {', '.join(map(str, range(15)))} FROM ({ENDLESS} SELECT x FROM c WHERE x < 0); END")),
        database("fewer columns", sql("DROP TABLE tuned", "CREATE TABLE tuned (a)")),
        database("more columns", sql("ALTER TABLE tuned ADD COLUMN more TEXT")),
        database("more tables", sql("CREATE TABLE other (a)")),
        database("a newer format", sql("PRAGMA user_version = 2")),
        database("no format", sql("PRAGMA user_version = 0"), writes=SUCCESS),
        database("other types", sql(types), SUCCESS, SUCCESS),
        database("a text of 100 MB", sql("UPDATE tuned SET problem = hex(zeroblob(50000000))"), REFUSED, SUCCESS),
        database("many texts of 3 MB", sql(f"INSERT INTO tuned {ENDLESS.replace('FROM c)', 'FROM c LIMIT 100)')} SELECT {COLUMNS.replace('batch', 'x + 1000').replace('problem', 'hex(zeroblob(1500000))')} FROM tuned, c"), SUCCESS, SUCCESS),
        database("300,000 entries", sql(many), SUCCESS, SUCCESS),
        database("no UTF-8", sql("UPDATE tuned SET problem = CAST(x'fffe1b5b33316d00ff' AS TEXT), implementation = CAST(x'c080' AS TEXT)"), SUCCESS, SUCCESS),
        database("noise", written(noise), REFUSED, SUCCESS, short=True),
        database("nothing", written(b""), REFUSED, SUCCESS),
        database("noise as journal", written(noise, "-journal"), ANY, ANY),
        database("noise as log", lambda machine: (machine.sql("PRAGMA journal_mode = WAL"), written(noise, "-wal")(machine)), ANY, ANY),
        *[database(f"flipped bits, seed {seed}", flipped(seed), ANY, ANY) for seed in range(20)],
        database("a link", replaced(victim)),
        database("a link to itself", replaced(lambda file: file.symlink_to(file))),
        database("a pipe", replaced(lambda file: os.mkfifo(file, 0o600)), short=True),
        database("a folder", replaced(lambda file: file.mkdir())),
        database("writable for all", lambda machine: machine.file.chmod(0o666)),
        database("a lock that stays", locked),


    ]  # fmt: skip


def imported(name: str, content: str | bytes, codes: int | tuple[int, ...] = REFUSED, short: bool = False) -> Attack:
    """Files that `flashlift cache import` reads."""

    def run() -> str | None:
        with tempfile.TemporaryDirectory(prefix="flashlift-hostile-") as folder:
            machine = Machine(folder)
            text = content.encode() if isinstance(content, str) else content
            (Path(folder) / "given").write_bytes(text)
            fault = machine.fault(["cache", "import", "given"], codes)
            for arguments in (
                ["run", PROBLEM, "--seconds=0"],
                ["run", PROBLEM, "--seconds=0", "--backward"],
                ["cache", "list"],
                ["cache", "export"],
            ):
                fault = fault or machine.fault(arguments, SUCCESS)
            return fault

    return Attack(f"import: {name}", run, short)


def entry(**fields: object) -> Attack:
    """The correct entry, except for some fields."""
    name = ", ".join(f"{field} {repr(value)[:20]}" for field, value in fields.items())

    def run() -> str | None:
        with tempfile.TemporaryDirectory(prefix="flashlift-hostile-") as folder:
            machine = Machine(folder)
            [right] = machine.exported["flashlift_tuned"]
            wrong = {"flashlift_tuned": [right | fields, right | fields | {"direction": "backward"}]}
            (Path(folder) / "given").write_text(json.dumps(wrong))
            fault = machine.fault(["cache", "import", "given"], ANY)
            for arguments in (
                ["run", PROBLEM, "--seconds=0"],
                ["run", PROBLEM, "--seconds=0", "--backward"],
                ["cache", "list"],
            ):
                fault = fault or machine.fault(arguments, SUCCESS)
            return fault

    return Attack(f"import: {name}", run, fields.get("q_tile") == LARGEST)


def imports() -> list[Attack]:
    def one(fields: str) -> str:
        return f'{{"flashlift_tuned": [{{{fields}}}]}}'

    numbers = (-1, 0, 1, 7, 2**31, 2**62, LARGEST, 2**63, 2**64, 1.5, "1", None, True, [])
    texts = ("", "x" * 1_000_000, "\0", "\x1b[31m", "cpu_amx", "portable", "'; DROP TABLE tuned; --", 5, None, {})
    return [
        imported("brackets", "[" * 1_000_000),
        imported("lists in lists", "[" * 1_000_000 + "]" * 1_000_000),
        imported("lists in a field", one('"direction": ' + "[" * 1_000_000 + "]" * 1_000_000), short=True),
        imported("objects in a field", one('"version": ' + '{"a":' * 1_000_000 + "1" + "}" * 1_000_000 + ', "direction": "forward"')),
        imported("a long text in a field", one(f'"direction": "{"x" * 30_000_000}"')),
        imported("a long number", one(f'"direction": {"9" * 1_000_000}')),
        imported("an infinite number", one('"direction": 1e999')),
        imported("many numbers", f'{{"flashlift_tuned": [{"0," * 16_000_000}0]}}'),
        imported("many objects", f'{{"flashlift_tuned": [{"{}," * 11_000_000}0]}}'),
        imported("too many bytes", b" " * (65 << 20)),
        imported("nothing", ""),
        imported("zero bytes", b"\0" * 100),
        imported("no UTF-8", b'{"flashlift_tuned": "\xff\xfe"}'),
        imported("no list", '{"flashlift_tuned": 5}'),
        imported("an empty list", '{"flashlift_tuned": []}', SUCCESS),
        imported("twice", '{"flashlift_tuned": [], "flashlift_tuned": 5}', ANY),
        *[entry(**{field: number}) for field in ("q_tile", "kv_tile", "splits", "threads", "tuned_at", "ms") for number in numbers],
        *[entry(**{field: text}) for field in ("implementation", "device", "problem", "version") for text in texts],
    ]  # fmt: skip


def full() -> list[Attack]:
    """The disk is full: existing entries stay, and the error names the variable that selects another folder."""

    def run() -> str | None:
        with tempfile.TemporaryDirectory(prefix="flashlift-hostile-") as folder:
            machine = Machine(folder)
            small = {resource.RLIMIT_FSIZE: 4096}  # too small for a journal
            faults = [
                machine.fault(["tune", "attn h2 s128 d8", "--seconds=0"], REFUSED, "FLASHLIFT_CACHE_DIR", limits=small),
                machine.fault(["cache", "clear"], REFUSED, "FLASHLIFT_CACHE_DIR", limits=small),
                machine.fault(["cache", "import", "exported"], REFUSED, "FLASHLIFT_CACHE_DIR", limits=small),
                machine.fault(["run", PROBLEM, "--seconds=0"], SUCCESS, limits=small),
                machine.fault(["cache", "list"], SUCCESS, "forward"),
                machine.fault(["tune", "attn h2 s128 d8", "--seconds=0"], SUCCESS),
            ]
            return next((fault for fault in faults if fault), None)

    return [Attack("a full disk", run, short=True)]


def attacks() -> list[Attack]:
    return databases() + imports() + full()
