"""flashlift.tune, `flashlift tune` and `flashlift cache`: results are measured, stored, shared and used."""

import json
import os
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import flashlift as package
import ml_dtypes
import numpy as np
import pytest

DECODE = "attn hq8 hkv2 sq1 skv1024 d32 f32"
SQUARE = "attn h2 s128 d32 f32 causal"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("FLASHLIFT_CACHE_DIR", str(folder))
    monkeypatch.delenv("FLASHLIFT_TUNING", raising=False)
    return folder


@pytest.fixture
def remember(flashlift, tmp_path):
    """remember(problem, implementation=..., ...): stores this as the fastest measured choice."""

    def put(problem, direction="forward", **best):
        backward = ["--backward"] if direction == "backward" else []
        assert flashlift("tune", problem, "--seconds", 0, "--policy", "write", *backward).returncode == 0
        text = flashlift("cache", "export").stdout
        entries = json.loads(text)
        own = [one for one in entries["flashlift_tuned"] if one["direction"] == direction]
        own[0].update({"implementation": "", "q_tile": 0, "kv_tile": 0, "splits": 0, "threads": 0} | best)
        file = tmp_path / "changed.json"
        file.write_text(json.dumps(entries))
        assert flashlift("cache", "import", file).returncode == 0

    return put


def reason(problem, **options):
    return package.compile(problem, **options).considerations[-1]


def test_measures_and_remembers(cache):
    tuned = package.tune(DECODE, seconds=0)
    assert tuned.stored and not tuned.from_database and (cache / "tuning.sqlite3").exists()
    assert tuned.candidates[0].ms <= tuned.candidates[-1].ms
    assert package.Tuning() in [one.tuning for one in tuned.candidates]
    assert any(one.tuning.splits for one in tuned.candidates), "splits of the keys are what decoding varies"
    assert tuned.ms <= tuned.heuristics_ms
    assert "heuristics" in tuned.table()
    again = package.tune(DECODE, policy="read")
    assert again.from_database and again.best == tuned.best and again.candidates == ()


def test_a_folder_above_the_cache_may_be_a_link(flashlift, tmp_path, monkeypatch):
    """As ~/.cache is where homes are small. The cache's folder itself may not: anybody can make a link in /tmp."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    monkeypatch.setenv("FLASHLIFT_CACHE_DIR", str(tmp_path / "home" / "cache"))
    assert package.tune(DECODE, seconds=0).stored
    assert (tmp_path / "disk" / "cache" / "tuning.sqlite3").exists()
    assert package.tune(DECODE, policy="read").from_database
    assert "hq8" in flashlift("cache", "list").stdout
    assert flashlift("cache", "clear").stdout.startswith("1 ")
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "cache")
    monkeypatch.setenv("FLASHLIFT_CACHE_DIR", str(tmp_path / "link"))
    with pytest.raises(
        package.FlashliftError, match="is a link; set FLASHLIFT_CACHE_DIR to the folder that it leads to"
    ):
        package.tune(DECODE, seconds=0)


def test_a_less_exact_implementation_is_not_a_candidate():
    tuned = package.tune("attn h2 s128 d32 bf16 out=f32", seconds=0, policy="off")
    names = {one.tuning.implementation for one in tuned.candidates}
    assert not names & {"cpu_amx", "cpu_avx512_bf16"}, names


def test_off_leaves_nothing_behind(cache):
    assert not package.tune(SQUARE, seconds=0, policy="off").stored
    assert not cache.exists()


def test_compiles_take_what_was_tuned(remember, monkeypatch):
    assert "tuned" not in reason(SQUARE)
    remember(SQUARE, kv_tile=64, threads=1)
    assert "by 64 keys" in reason(SQUARE) and "(tuned: kv_tile=64 threads=1)" in reason(SQUARE)
    # Neither other lengths nor other problems, nor where an implementation is named, or the policy says no.
    assert "tuned" not in reason("attn h2 s129 d32 f32 causal")
    assert "tuned" not in reason("attn h2 s128 d32 f32")
    assert "tuned" not in reason(SQUARE, implementation=package.compile(SQUARE).implementation)
    assert "tuned" not in reason(SQUARE, tuning="off")
    monkeypatch.setenv("FLASHLIFT_TUNING", "off")
    assert "tuned" not in reason(SQUARE)
    assert "tuned" in reason(SQUARE, tuning="read")


def test_lengths_that_are_not_known_take_the_last(remember):
    remember(SQUARE, kv_tile=64)
    of_any_length = package.Attention("attn h2 s1 d32 f32 causal", lengths_known=False)
    assert "by 64 keys" in of_any_length.considerations[-1]


def test_passes_are_tuned_each_by_itself(remember):
    remember("attn h2 s512 d32 f32", direction="backward", kv_tile=512)
    attention = package.compile("attn h2 s512 d32 f32")
    assert "512 keys a task" in attention.backward_considerations[-1]
    assert "tuned" not in attention.considerations[-1]


@pytest.mark.parametrize("best", [{"kv_tile": 64}, {"kv_tile": 512, "q_tile": 96}, {"splits": 4, "threads": 1}])
@pytest.mark.parametrize(
    "problem", [DECODE, "attn b2 h2 sq300 skv700 d40 f32 causal", "attn h2 s200 d64 bf16 window=9"]
)
def test_results_stay_right(problem, best, remember):
    remember(problem, **best)
    sizes = package.Problem.parse(problem)
    b, d = sizes.batch, sizes.head_dim
    places = [(sizes.q_heads, sizes.q_len), *[(sizes.kv_heads, sizes.kv_len)] * 2]
    rng = np.random.default_rng(0)
    if "bf16" in problem:
        dtype = ml_dtypes.bfloat16
    else:
        dtype = np.float32
    q, k, v = (rng.standard_normal((b, h, s, d)).astype(dtype) for h, s in places)
    assert "tuned" in reason(problem)
    got = package.compile(problem)(q, k, v).astype(np.float32)
    want = package.compile(problem, tuning="off")(q, k, v).astype(np.float32)
    np.testing.assert_allclose(got, want, atol=2e-2 if dtype is not np.float32 else 2e-6)


@pytest.mark.parametrize("best", [{"kv_tile": 65}, {"q_tile": 7}, {"splits": 10**6}, {"implementation": "cpu_none"}])
def test_what_cannot_run_counts_as_untuned(best, remember):
    remember(SQUARE, **best)
    assert "tuned" not in reason(SQUARE)


def test_a_torn_file_is_a_miss_and_begun_anew(cache, flashlift):
    cache.mkdir(mode=0o700)
    file = cache / "tuning.sqlite3"
    file.write_bytes(b"torn" * 1000)
    assert "tuned" not in reason(SQUARE)
    assert flashlift("cache", "list").returncode == 2
    assert package.tune(SQUARE, seconds=0).stored
    assert len(json.loads(flashlift("cache", "export").stdout)["flashlift_tuned"]) == 1


KILLED_WHILE_IT_WROTE = """
import os, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA cache_size = 1")  # pages go to the file before the end of the transaction
database.execute("BEGIN IMMEDIATE")
columns = len(database.execute("PRAGMA table_info(tuned)").fetchall())
for row in range(100):
    database.execute(f"INSERT INTO tuned VALUES ({', '.join('?' * columns)})", ["x" * 1000, *[row] * (columns - 1)])
os._exit(0)
"""


def test_a_process_that_was_killed_while_it_wrote_changes_nothing(cache, remember, flashlift):
    remember(SQUARE, kv_tile=64)
    before = flashlift("cache", "export").stdout
    subprocess.run([sys.executable, "-c", KILLED_WHILE_IT_WROTE, cache / "tuning.sqlite3"], check=True)
    assert (cache / "tuning.sqlite3-journal").exists()
    assert "tuned" in reason(SQUARE)
    assert flashlift("cache", "export").stdout == before


@pytest.mark.parametrize("command", ["list", "export", "clear"])
def test_a_folder_in_which_nobody_can_look(command, flashlift, tmp_path):
    (tmp_path / "file").touch()
    run = flashlift("cache", command, env={**os.environ, "FLASHLIFT_CACHE_DIR": f"{tmp_path}/file"})
    assert run.returncode == 2
    assert "tuning.sqlite3 cannot be opened: Not a directory; set FLASHLIFT_CACHE_DIR to a folder" in run.stderr


def test_an_empty_file_has_no_entries(cache, flashlift):
    """A process creates the file before it writes; on a full disk it cannot."""
    cache.mkdir(mode=0o700)
    (cache / "tuning.sqlite3").touch(0o600)
    assert json.loads(flashlift("cache", "export").stdout) == {"flashlift_tuned": []}
    assert flashlift("run", SQUARE, env={**os.environ, "FLASHLIFT_LOG": "warning"}).stderr == ""
    assert flashlift("cache", "clear").stdout.startswith("0 ")
    assert package.tune(SQUARE, seconds=0).stored


TUNE_ON_A_FULL_DISK = """
import resource, sys
import flashlift
flashlift.tune("attn h2 s64 d8", seconds=0)
measured = []
flashlift._tune._Bar.show = lambda *progress: measured.append(progress)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
try:
    flashlift.tune("attn h2 s128 d8", seconds=0, progress=True)
except flashlift.NotFoundError as error:
    assert "disk" in str(error) and "FLASHLIFT_CACHE_DIR" in str(error)
    assert not measured
"""


@pytest.mark.parametrize("room", [4096, 8192, 12288, 16384])
def test_a_full_disk_is_reported_before_measuring(cache, room):
    """Also if there is room for what opens the database, but not for the entry."""
    done = subprocess.run([sys.executable, "-c", TUNE_ON_A_FULL_DISK, str(room)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_other_versions_are_misses(cache, remember, flashlift):
    remember(SQUARE, kv_tile=64)
    with sqlite3.connect(cache / "tuning.sqlite3") as database:
        database.execute("UPDATE tuned SET version = '0.0.1'")
    database.close()
    assert "tuned" not in reason(SQUARE)
    assert "of other versions" in flashlift("cache", "list").stdout
    with sqlite3.connect(cache / "tuning.sqlite3") as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    assert "tuned" not in reason(SQUARE)
    with pytest.raises(package.UnsupportedError, match="has format 99.*flashlift cache clear"):
        package.tune(SQUARE, seconds=0)
    assert "cannot be read was removed" in flashlift("cache", "clear").stdout
    assert flashlift("cache", "clear").stdout.startswith("0 ")
    assert package.tune(SQUARE, seconds=0).stored


def test_clear_says_that_it_could_not_read_the_file(cache, remember, flashlift):
    remember(SQUARE, kv_tile=64)
    (cache / "tuning.sqlite3").write_bytes(b"no database")
    listed = flashlift("cache", "list").stderr
    assert "file is not a database; `flashlift cache clear` removes it" in listed
    cleared = json.loads(flashlift("cache", "clear", "--json").stdout)
    assert cleared["tuned"] is None and "tuning.sqlite3" in cleared["problem"] and cleared["kernels"] == 0
    assert not (cache / "tuning.sqlite3").exists()


def test_others_must_not_write_it(cache, remember):
    remember(SQUARE, kv_tile=64)
    (cache / "tuning.sqlite3").chmod(0o666)
    assert "tuned" not in reason(SQUARE)


def test_a_folder_that_takes_no_files(monkeypatch):
    monkeypatch.setenv("FLASHLIFT_CACHE_DIR", f"/proc/{os.getpid()}")  # not even of root
    with pytest.raises(
        package.NotFoundError, match="tuning.sqlite3 cannot be made: .*set FLASHLIFT_CACHE_DIR to another"
    ):
        package.tune(SQUARE, seconds=0)


def test_processes_share_it(cache):
    code = "import sys, flashlift; flashlift.tune(sys.argv[1], seconds=0)"
    problems = [f"attn h1 s{length} d16 f32" for length in (16, 17, 18, 19)]
    with ThreadPoolExecutor() as pool:
        runs = list(pool.map(lambda p: subprocess.run([sys.executable, "-c", code, p], timeout=120), problems))
    assert [run.returncode for run in runs] == [0] * 4
    assert all(package.tune(problem, policy="read").from_database for problem in problems)


def test_command_line(flashlift):
    done = flashlift("tune", DECODE, SQUARE, "--seconds", 0)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("heuristics") >= 3 and "Stored" in done.stdout and "\r" not in done.stderr
    results = json.loads(flashlift("tune", SQUARE, "--policy", "read", "--json").stdout)["results"]
    assert results[0]["from_database"] and results[0]["direction"] == "forward"
    listed = flashlift("cache", "list").stdout
    assert "b1 sq1 skv1024" in listed and "b1 sq128 skv128" in listed
    assert "2 problems" in flashlift("cache", "show").stdout
    assert "2 tuned problems removed" in flashlift("cache", "clear").stdout
    assert "0 problems" in flashlift("cache", "show").stdout


@pytest.mark.parametrize(
    "text, message",
    [
        ("[]", 'a list "flashlift_tuned"'),
        ("{", 'a list "flashlift_tuned"'),
        ('{"flashlift_tuned": [1]}', "entry 0: expected an object"),
        ('{"flashlift_tuned": [{"direction": "up"}]}', 'entry 0: "direction" is "up"'),
        ('{"flashlift_tuned": [{"direction": "forward", "version": 3}]}', 'entry 0: "version" is 3; expected a text'),
    ],
)
def test_import_says_what_is_wrong(text, message, flashlift, tmp_path):
    file = tmp_path / "in.json"
    file.write_text(text)
    done = flashlift("cache", "import", file)
    assert done.returncode == 2 and message in done.stderr


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"policy": "on"}, "policy is 'on'; expected"),
        ({"layout": "sbhd"}, "layout is 'sbhd'"),
        ({"device": "tpu"}, 'device is "tpu"'),
        ({"seconds": -1.0}, "seconds are -1"),
        ({"seconds": float("nan")}, "seconds are nan"),
    ],
)
def test_misuse(arguments, message):
    with pytest.raises(package.InvalidArgumentError, match=message):
        package.tune(SQUARE, **arguments)


def test_an_interrupt_ends_it(monkeypatch):
    import flashlift._tune as module

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module._Bar, "show", interrupt)
    with pytest.raises(KeyboardInterrupt):
        package.tune(SQUARE, progress=True, policy="off")


def test_wrong_policy_in_the_environment(monkeypatch, flashlift):
    message = "FLASHLIFT_TUNING is 'yes', expected off, read or write"
    monkeypatch.setenv("FLASHLIFT_TUNING", "yes")
    with pytest.raises(package.InvalidArgumentError, match=message):
        package.compile(SQUARE)
    shown = flashlift("cache", "show")
    assert shown.returncode == 2 and message in shown.stderr


def test_jax_functions():
    import flashlift.jax as front
    import jax

    q, k = (jax.ShapeDtypeStruct((1, length, 2, 32), "float32") for length in (40, 200))

    def loss(q, k):
        return front.flash_attention(q, k, k, causal="bottom_right").sum()

    found = front.tune(jax.grad(loss), q, k, seconds=0)
    assert [one.direction for one in found] == ["forward", "backward"] and all(one.stored for one in found)
    again = front.tune(jax.jit(jax.grad(loss)), q, k, policy="read")
    assert all(one.from_database for one in again)
    forward = front.Executor().tune(front.FlashAttention(), q, k, k, causal=True, seconds=0)
    assert [one.direction for one in forward] == ["forward"]
    with pytest.raises(package.InvalidArgumentError, match="runs no attention of Flashlift's"):
        front.tune(lambda q: q + 1, q)
