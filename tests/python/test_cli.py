"""The command line: output, exit codes, and errors for bad input."""

import json
import os
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree

import jax
import jax.numpy as jnp
import pytest

SUBCOMMANDS = ["run", "bench", "explain", "draw", "fuse", "info", "completion"]


def assert_bad_input(done, *words):
    """Exit code 2, a message on standard error only, holding each of the words."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("error: "), done.stderr
    for word in words:
        assert word in done.stderr, f"{word!r} is not in: {done.stderr}"


def test_help_lists_every_subcommand(flashlift):
    done = flashlift("--help")
    assert done.returncode == 0 and done.stderr == ""
    for name in SUBCOMMANDS:
        assert f"\n  {name} " in done.stdout


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_each_subcommand_has_help(flashlift, name):
    done = flashlift(name, "--help")
    assert done.returncode == 0 and done.stderr == ""
    assert f"flashlift {name}" in done.stdout


def test_version_is_one_line(flashlift):
    done = flashlift("--version")
    assert done.returncode == 0
    assert done.stdout.count("\n") == 1 and done.stdout[0].isdigit()
    assert flashlift("-V").stdout == done.stdout


def test_no_subcommand_is_a_wrong_call_that_lists_them(flashlift):
    assert_bad_input(flashlift(), "a subcommand is missing", *(f"\n  {name} " for name in SUBCOMMANDS))


def test_unknown_subcommand_is_a_wrong_call(flashlift):
    assert_bad_input(flashlift("fly"), "fly", "flashlift --help")
    assert_bad_input(flashlift("rnu"), "rnu is not a subcommand; did you mean `run`?")
    assert_bad_input(flashlift("hlep"), "did you mean `help`?")
    assert_bad_input(flashlift("version"), "version is not a subcommand; did you mean `--version`?")
    assert_bad_input(flashlift("fly"), "expected one of run, bench, explain")
    assert_bad_input(flashlift("cache", "ls"), "ls is not a subcommand of cache; expected one of list, show, export")
    assert_bad_input(flashlift("rnu", "--help"), "rnu is not a subcommand; did you mean `run`?")
    assert_bad_input(flashlift("cache", "lst", "--help"), "lst is not a subcommand of cache; did you mean `list`?")
    assert_bad_input(flashlift("cache", "lst"), "lst is not a subcommand of cache; did you mean `list`?")
    assert_bad_input(flashlift("cache"), "cache needs one of list, show, export, import, clear")


def test_help_of_a_subcommand(flashlift):
    assert flashlift("help").stdout == flashlift("--help").stdout
    assert flashlift("help", "run").stdout == flashlift("run", "--help").stdout
    assert flashlift("help", "cache", "list").stdout == flashlift("cache", "list", "--help").stdout
    assert flashlift("help", "help").stdout == flashlift("--help").stdout
    assert_bad_input(flashlift("help", "rnu"), "did you mean `run`?")
    assert_bad_input(flashlift("help", "cache", "lst"), "did you mean `list`?")


def test_no_problem_is_answered_with_one(flashlift):
    for name in ("run", "bench", "explain", "tune"):
        assert_bad_input(flashlift(name), "is missing", '"attn h8 s1024 d64 causal"')


def test_a_problem_without_quotes_is_answered_with_them(flashlift):
    words = ["attn", "h2", "s8", "d8", "causal", "window=4,0"]
    for command in ("run", "bench", "explain", "tune", "compile"):
        assert_bad_input(flashlift(command, *words, "--json"), 'in quotes: "attn h2 s8 d8 causal window=4,0"')


COMPLETED = [
    ("flashlift ", SUBCOMMANDS),
    ("flashlift ru", ["run"]),
    ("flashlift run ", ["--check", "--json"]),
    ("flashlift run --dev", ["--device"]),
    ("flashlift run --device ", ["cpu", "cuda"]),
    ("flashlift run --device=c", ["cpu", "cuda"]),
    ("flashlift fuse in.mlir --as ", ["custom_call", "composite"]),
    ("flashlift cache ", ["list", "clear"]),
    ("flashlift cache li", ["list"]),
    ("flashlift cache list --", ["--json"]),
    ("flashlift completion ", ["bash", "zsh", "fish"]),
]


def test_shells_complete_subcommands_and_options(flashlift):
    done = flashlift("completion", "bash")
    assert done.returncode == 0 and done.stderr == ""
    for line, expected in COMPLETED:
        words = line.replace("=", " = ").split(" ")  # as bash splits a line
        ask = f"COMP_WORDS=({' '.join(one or repr('') for one in words)}); COMP_CWORD={len(words) - 1}; _flashlift\n"
        script = done.stdout + ask + 'echo "${COMPREPLY[@]}"'
        found = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.split()
        assert set(expected) <= set(found), (line, found)
        assert all(one.startswith(words[-1]) for one in found), (line, found)
    assert "--check" not in found and "list" not in found
    assert "bashcompinit" in flashlift("completion", "zsh").stdout
    lines = flashlift("completion", "fish").stdout.splitlines()
    within = "complete -c flashlift -n '__fish_seen_subcommand_from "
    assert any(one.startswith(f"{within}run' -l check -d '") for one in lines)
    assert any(one.startswith(f"{within}run' -l device -x -a 'cpu cuda' -d '") for one in lines)
    assert any(one.startswith(f"{within}cache' -f -a list -d '") for one in lines)
    assert any(one.startswith(f"{within}cache; and __fish_seen_subcommand_from list' -l json -d '") for one in lines)
    assert any(one.startswith("complete -c flashlift -n __fish_use_subcommand -f -a run -d '") for one in lines)
    assert_bad_input(flashlift("completion", "tcsh"), "tcsh", "bash")


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish: apt-get install fish")
@pytest.mark.parametrize("line, expected", [one for one in COMPLETED if one[0][-1] != " " or one[1][0][0] != "-"])
def test_fish_completes(flashlift, tmp_path, line, expected):
    """It lists options after a dash only."""
    script = flashlift("completion", "fish").stdout + f"complete -C {line!r}"
    environment = os.environ | {"HOME": str(tmp_path)}
    done = subprocess.run(["fish", "-c", script], capture_output=True, text=True, env=environment, cwd=tmp_path)
    found = [one.split("\t")[0].rpartition("=")[2] for one in done.stdout.splitlines()]
    assert done.stderr == "" and set(expected) <= set(found), (done.stderr, found)


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh: apt-get install zsh")
def test_zsh_takes_its_completion_without_set_up(flashlift, tmp_path):
    script = flashlift("completion", "zsh").stdout + "print ${_comps[flashlift]}"
    environment = os.environ | {"HOME": str(tmp_path), "ZDOTDIR": str(tmp_path)}
    done = subprocess.run(["zsh", "-f", "-c", script], capture_output=True, text=True, env=environment)
    assert done.stderr == "" and "_bash_complete" in done.stdout, done


def test_unknown_option_names_the_subcommand_to_ask(flashlift):
    assert_bad_input(flashlift("info", "--fast"), "--fast", "flashlift info --help")
    assert_bad_input(flashlift("run", "attn h1 s8 d8", "--chekc"), "not an option of run; did you mean `--check`?")
    assert_bad_input(flashlift("run", "--secnds=3"), "--secnds is not an option of run; did you mean `--seconds`?")
    assert_bad_input(flashlift("cache", "list", "--jsno"), "not an option of list; did you mean `--json`?")
    assert_bad_input(
        flashlift("run", "attn h1 s8 d8", "-check"), "-check is not an option of run; did you mean `--check`?"
    )
    assert_bad_input(flashlift("compile", "attn h1 s8 d8", "--arch=90"), "did you mean `--architecture`?")
    assert_bad_input(flashlift("--versoin"), "--versoin is not an option of flashlift; did you mean `--version`?")
    assert_bad_input(flashlift("--json", "info"), "--json stands before the subcommand", "flashlift info ...")
    assert_bad_input(flashlift("run", "attn h1 s8 d8", "--device=gpu"), "--device: expected cpu or cuda, got gpu")


def test_missing_and_unexpected_arguments_in_words(flashlift, tmp_path):
    problem, module = "attn h1 s8 d8", tmp_path / "in.mlir"
    assert_bad_input(flashlift("fuse", module), "--output is missing: where the fused module goes; - is standard")
    assert_bad_input(flashlift("fuse", module, "-o"), "--output needs a value: where the fused module goes")
    assert_bad_input(flashlift("completion"), "shell is missing: bash, zsh or fish")
    assert_bad_input(flashlift("run", problem, "--seed=1", "--seed=2"), "--seed is given more than once")
    assert_bad_input(flashlift("run", problem, "more"), "run takes no `more`")
    assert_bad_input(flashlift("info", "ops"), "info takes no `ops`; did you mean `--ops`?")


def test_full_disk_is_an_error(flashlift):
    program = flashlift("--version").args[0]
    with open("/dev/full", "w") as full:
        done = subprocess.run([program, "info"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and "standard output" in done.stderr


def test_info_shows_the_machine(flashlift):
    info = json.loads(flashlift("info", "--json").stdout)
    assert info["versions"]["flashlift"] == flashlift("--version").stdout.strip()
    (cpu,) = [device for device in info["devices"] if device["device"] == "cpu"]
    assert cpu["threads"] >= 1 and cpu["used"] in ("portable", "avx2", "avx512", "avx512_bf16", "amx")


def test_info_says_what_a_gpu_lacks(flashlift, tmp_path):
    environment = {**os.environ, "FLASHLIFT_NVRTC": str(tmp_path / "libnvrtc.so")}
    devices = json.loads(flashlift("info", "--json", env=environment).stdout)["devices"]
    (cuda, *more) = [device for device in devices if device["device"].startswith("cuda")]
    if "missing" not in cuda:
        pytest.skip("this machine has a GPU")
    assert not more and cuda["nvrtc"] is None
    driver, nvrtc = cuda["missing"]
    assert "driver" in driver and "FLASHLIFT_NVRTC" in nvrtc
    text = flashlift("info", env=environment).stdout
    assert f"\n           - {driver}\n           - {nvrtc}\n" in text


def test_info_says_what_a_wrong_variable_does(flashlift):
    done = flashlift("info", env={**os.environ, "FLASHLIFT_ISA": "sse"})
    assert done.returncode == 0 and "not usable" in done.stdout and "FLASHLIFT_ISA" in done.stdout
    done = flashlift("info", env={**os.environ, "FLASHLIFT_THREADS": "two"})
    assert done.returncode == 0 and "not usable: FLASHLIFT_THREADS is 'two'" in done.stdout
    assert ", 1 thread, " in flashlift("info", env={**os.environ, "FLASHLIFT_THREADS": "1"}).stdout


def test_info_names_variables_that_nothing_reads(flashlift):
    environment = {**os.environ, "FLASHLIFT_THREAD": "2"}
    assert "FLASHLIFT_THREAD is set, and is no variable" in flashlift("info", env=environment).stdout
    (one,) = [
        entry
        for entry in json.loads(flashlift("info", "--json", env=environment).stdout)["unknown_environment"]
        if entry["name"] == "FLASHLIFT_THREAD"
    ]
    assert one["hint"] == "did you mean `FLASHLIFT_THREADS`?"


def test_the_cache_speaks_json(flashlift, tmp_path):
    environment = {**os.environ, "FLASHLIFT_CACHE_DIR": str(tmp_path / "cache"), "FLASHLIFT_TUNING": "write"}
    ask = lambda *arguments, **more: json.loads(
        flashlift("cache", *arguments, "--json", env=environment, **more).stdout
    )
    assert ask("import", "-", input='{"flashlift_tuned": []}') == {"imported": 0}
    shown = ask("show")
    assert shown["folder"] == str(tmp_path / "cache") and shown["tuned"] == 0 and shown["policy"] == "write"
    assert ask("clear", "--kernels") == {"tuned": 0, "kernels": 0}


def test_a_cache_that_cannot_be_made_says_what_to_do(flashlift, tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", "/proc/no"):
        environment = {**os.environ, "FLASHLIFT_CACHE_DIR": str(folder), "FLASHLIFT_TUNING": "write"}
        done = flashlift("tune", "attn h1 s8 d8", "--seconds=0", env=environment)
        assert_bad_input(done, str(folder), "cannot be made or opened", "set FLASHLIFT_CACHE_DIR")


def test_info_shows_the_environment_table(flashlift):
    environment = {**os.environ, "FLASHLIFT_LOG": "warning"}
    info = json.loads(flashlift("info", "--json", env=environment).stdout)
    variables = {entry["name"]: entry for entry in info["environment"]}
    assert 1 <= len(variables) <= 12
    assert all(name.startswith("FLASHLIFT_") and entry["meaning"] for name, entry in variables.items())
    assert variables["FLASHLIFT_LOG"]["value"] == "warning"
    for name in variables:
        assert name in flashlift("info").stdout


MALFORMED_PROBLEMS = [
    "",
    "attn",
    "attn h8 s128",  # no head dimension
    "attn h8 s128 d64 casual",
    "attn h8 s128 d64 softcap=",
    "attn hq6 hkv4 s128 d64",
    "attn h8 s-128 d64",
    "attn h8 s99999999999999999999 d64",
    "attn h8 s128 d4096",
    "attn h8 s128 d64 mask_mod() { return score }",
    "attn h8 s128 d64 score_mod() { return",
]


@pytest.mark.parametrize("problem", MALFORMED_PROBLEMS)
def test_malformed_problem(flashlift, tmp_path, problem):
    assert_bad_input(flashlift("draw", problem, "-o", tmp_path / "mask.svg"))
    assert list(tmp_path.iterdir()) == []
    assert_bad_input(flashlift("run", problem))
    assert_bad_input(flashlift("bench", "attn h1 s8 d8", problem))


def run_json(flashlift, *arguments):
    done = flashlift("run", *arguments, "--seconds", 0, "--json")
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def test_run_gives_the_documented_fields(flashlift):
    code, result = run_json(flashlift, "attn b2 hq4 hkv2 sq100 skv130 d24 causal")
    assert code == 0
    fields = "problem device implementation direction ms gflops workspace_bytes compile_ms calls seed"
    assert list(result) == fields.split()
    assert result["device"] == "cpu" and result["direction"] == "forward"
    assert result["ms"] > 0 and result["gflops"] > 0 and result["workspace_bytes"] > 0


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize(
    "problem",
    [
        "attn b2 hq4 hkv2 sq100 skv130 d24 causal",
        "attn h3 s65 dqk40 dv16 bf16 window=20 softcap=5 lse",
        "attn h2 s70 d64 f16 out=f32 alibi sinks=2 empty_rows=uniform",
        "attn b2 h2 s64 d8 mask_mod(ids: i32[2, 64]) { %0 = load ids[b, q]; %1 = load ids[b, kv]; "
        "%2 = eq %0, %1; return %2 }",
    ],
)
def test_run_check_agrees_with_the_oracle(flashlift, problem, layout):
    code, result = run_json(flashlift, problem, "--check", "--layout", layout)
    assert code == 0 and result["ok"] is True
    errors = result["errors"]
    assert set(errors) == {"mean", "largest", "row"} and errors["mean"]["error"] <= errors["largest"]["error"]
    assert all(0 <= measure["error"] <= measure["limit"] for measure in errors.values())


def test_run_for_people(flashlift):
    done = flashlift("run", "attn h2 s64 d16", "--check", "--seconds", 0)
    assert done.returncode == 0 and done.stderr == ""
    for word in ("GFLOP/s", "workspace", "check           ok"):
        assert word in done.stdout


def test_run_prints_a_problem_that_it_reads_back(flashlift):
    _, first = run_json(flashlift, "attn h2 s64 d16 causal alibi softcap=3")
    _, second = run_json(flashlift, first["problem"])
    assert second["problem"] == first["problem"]


@pytest.mark.parametrize("option", ["--seed=-1", "--seconds=-1", "--layout=bdsh", "--device=tpu"])
def test_run_refuses_values_out_of_range(flashlift, option):
    assert_bad_input(flashlift("run", "attn h2 s64 d16", option), option.split("=")[0], "flashlift run --help")


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine has a GPU to run on")
@pytest.mark.parametrize("command", ["run", "bench"])
def test_run_on_a_gpu_that_is_not_there(flashlift, command):
    assert_bad_input(flashlift(command, "attn h2 s64 d16", "--device", "cuda"), "CUDA", "use device cpu")


def test_run_with_an_implementation_that_is_not_there(flashlift):
    assert_bad_input(flashlift("run", "attn h2 s64 d16", "--implementation", "magic"), "magic", "cpu_avx2")


def test_run_of_a_problem_larger_than_memory(flashlift):
    assert_bad_input(flashlift("run", "attn b1000 h64 s1000000 d256"), "GiB", "smaller")


def test_bench_is_a_table_with_a_line_each(flashlift):
    problems = ["attn h2 s64 d16", "attn h2 s128 d16 causal"]
    done = flashlift("bench", *problems, "--seconds", 0)
    assert done.returncode == 0 and done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) == 3 and "GFLOP/s" in lines[0]
    assert lines[1].startswith(problems[0]) and lines[2].startswith(problems[1])


def test_bench_json_has_a_result_each(flashlift):
    done = flashlift("bench", "attn h2 s64 d16", "attn h2 s128 d16 causal", "--seconds", 0, "--json")
    results = json.loads(done.stdout)["results"]
    assert [" sq64 " in result["problem"] for result in results] == [True, False]
    assert all(result["ms"] > 0 for result in results)


def test_speeds_count_the_scores_that_are_kept(flashlift):
    problems = ["attn h2 s128 d16", "attn h2 s128 d16 causal", "attn h2 s5000 d8 causal", "attn h2 s5000 d8"]
    done = flashlift("bench", *problems, "--seconds", 0, "--json")
    full, causal, long_causal, long = (one["gflops"] * one["ms"] for one in json.loads(done.stdout)["results"])
    assert causal / full == pytest.approx(129 / 256)
    assert long_causal / long == pytest.approx(5001 / 10000, rel=1e-3)


def test_explain_says_what_was_chosen_and_why(flashlift):
    done = flashlift("explain", "attn h2 s1024 d16 causal", "--json")
    assert done.returncode == 0 and done.stderr == ""
    result = json.loads(done.stdout)
    accepted = [one for one in result["considered"] if one["accepted"]]
    assert [one["implementation"] for one in accepted] == [result["implementation"]]
    assert all(one["reason"] for one in result["considered"] + result["backward_considered"])
    assert [one["accepted"] for one in result["backward_considered"]].count(True) == 1
    tiles = result["tiles"]
    assert tiles["skipped"] + tiles["full"] + tiles["partial"] == 2 * 8 * 8


def test_explain_for_people_shows_the_programs(flashlift):
    output = flashlift("explain", "attn h2 s1024 d16 causal softcap=2").stdout
    for word in ("score_mod", "tanh", "mask_mod", "chosen", "skipped"):
        assert word in output


def test_explain_code_is_the_generated_code(flashlift):
    done = flashlift("explain", "attn h2 s64 d16 softcap=2", "--code")
    assert done.returncode == 0 and len(done.stdout) > 500
    code = json.loads(flashlift("explain", "attn h2 s64 d16 softcap=2", "--code", "--json").stdout)["code"]
    assert code.strip() in done.stdout
    assert ".ltext" not in code  # of the large code model, which is not that of the code that runs


@pytest.fixture(scope="module")
def causal_module(root):
    return root / "tests" / "fuzz" / "seeds" / "module" / "causal.mlir"


PLAIN_MODULE = """
func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {   // spaces   and comments stay
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


def test_explain_of_a_module(flashlift, causal_module):
    (candidate,) = json.loads(flashlift("explain", causal_module, "--json").stdout)["candidates"]
    assert candidate["fused"] is True and candidate["mask_mod"] and candidate["reason"]
    output = flashlift("explain", causal_module).stdout
    assert "fused" in output and candidate["problem"] in output


def test_explain_of_a_module_without_attention(flashlift, tmp_path):
    (tmp_path / "plain.mlir").write_text(PLAIN_MODULE)
    done = flashlift("explain", tmp_path / "plain.mlir")
    assert done.returncode == 0 and "nothing" in done.stdout


def test_explain_prints_a_found_problem_that_run_takes(flashlift, causal_module):
    (candidate,) = json.loads(flashlift("explain", causal_module, "--json").stdout)["candidates"]
    code, result = run_json(flashlift, candidate["problem"], "--check")
    assert code == 0 and result["ok"]


def test_explain_has_no_code_for_modules(flashlift, causal_module):
    assert_bad_input(flashlift("explain", causal_module, "--code"), "--code")


def test_fuse_with_gradients(flashlift, tmp_path):
    def loss(q, k, v):
        return jnp.sum(jnp.sin(jax.nn.softmax(q @ k.T) @ v))

    q = jnp.ones((8, 16))
    (tmp_path / "in.mlir").write_text(jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2))).lower(q, q, q).as_text())
    done = flashlift("fuse", tmp_path / "in.mlir", "-o", tmp_path / "out.mlir", "--gradients")
    assert done.returncode == 0 and "1 of 1 fused" in done.stdout
    assert '"flashlift.attention_backward"' in (tmp_path / "out.mlir").read_text()
    done = flashlift("fuse", tmp_path / "in.mlir", "-o", tmp_path / "left.mlir")
    assert done.returncode == 0 and (tmp_path / "left.mlir").read_text() == (tmp_path / "in.mlir").read_text()
    both = ("--gradients", "--as", "composite")
    assert_bad_input(flashlift("fuse", tmp_path / "in.mlir", "-o", tmp_path / "none.mlir", *both), "custom calls only")
    assert not (tmp_path / "none.mlir").exists()


@pytest.mark.parametrize("form, operation", [("custom_call", '"flashlift.attention"'), ("composite", ".composite")])
def test_fuse_writes_module_and_report(flashlift, tmp_path, causal_module, form, operation):
    done = flashlift(
        "fuse", causal_module, "-o", tmp_path / "out.mlir", "--as", form, "--report", tmp_path / "report.json"
    )
    assert done.returncode == 0 and done.stderr == ""
    assert "1 of 1 fused" in done.stdout
    assert operation in (tmp_path / "out.mlir").read_text()
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["as"] == form and report["fused"] == 1
    (candidate,) = report["candidates"]
    assert set(candidate) >= {"location", "fused", "reason", "problem", "score_mod", "mask_mod"}
    assert len(list(tmp_path.iterdir())) == 2


def test_fuse_json_is_the_report(flashlift, tmp_path, causal_module):
    options = ["fuse", causal_module, "-o", tmp_path / "out.mlir", "--report", tmp_path / "report.json", "--json"]
    assert json.loads(flashlift(*options).stdout) == json.loads((tmp_path / "report.json").read_text())


def test_fuse_leaves_a_module_without_attention_byte_for_byte(flashlift, tmp_path):
    (tmp_path / "plain.mlir").write_text(PLAIN_MODULE)
    done = flashlift("fuse", tmp_path / "plain.mlir", "-o", tmp_path / "out.mlir")
    assert done.returncode == 0
    assert (tmp_path / "out.mlir").read_text() == PLAIN_MODULE


def test_modules_come_from_standard_input(flashlift, tmp_path, causal_module):
    text = causal_module.read_text()
    fused = flashlift("fuse", "-", "-o", "-", input=text)
    assert fused.returncode == 0 and fused.stdout == flashlift("fuse", causal_module, "-o", "-").stdout
    assert "<stdin>:" in fused.stderr and "1 of 1 fused" in fused.stderr
    (candidate,) = json.loads(flashlift("explain", "-", "--json", input=text).stdout)["candidates"]
    assert candidate["fused"] and candidate["location"].startswith("<stdin>:")
    assert_bad_input(flashlift("explain", "-", input="no module"), "<stdin>:1:1")
    assert_bad_input(flashlift("fuse", "-", "-o", tmp_path / "out.mlir", input=""), "<stdin>: the text is empty")
    assert list(tmp_path.iterdir()) == []


def test_fuse_may_replace_its_input(flashlift, tmp_path, causal_module):
    module = tmp_path / "module.mlir"
    module.write_text(causal_module.read_text())
    assert flashlift("fuse", module, "-o", module).returncode == 0
    assert "flashlift.attention" in module.read_text()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "this is no module",
        "func.func @main(",
        PLAIN_MODULE.replace("tensor<4xf32>", "tensor<4xf33>"),
        PLAIN_MODULE.replace("%x, %x", "%x, %y"),
        PLAIN_MODULE.replace("stablehlo.add", "stablehlo.dot_general"),
        "ML\xefR\x0dStableHLO",
        "\0\0\0",
        "(" * 100000,
    ],
)
def test_malformed_module_writes_nothing(flashlift, tmp_path, text):
    module = tmp_path / "module.mlir"
    module.write_text(text)
    done = flashlift("fuse", module, "-o", tmp_path / "out.mlir", "--report", tmp_path / "report.json")
    assert_bad_input(done)
    assert list(tmp_path.iterdir()) == [module]
    assert_bad_input(flashlift("explain", module))


def test_fuse_names_the_place_of_an_error(flashlift, tmp_path):
    (tmp_path / "module.mlir").write_text(PLAIN_MODULE.replace("%x, %x", "%x, %y"))
    assert_bad_input(flashlift("fuse", tmp_path / "module.mlir", "-o", tmp_path / "out.mlir"), "module.mlir:3:")


def test_fuse_of_files_that_are_not_there(flashlift, tmp_path, causal_module):
    assert_bad_input(flashlift("fuse", tmp_path / "none.mlir", "-o", tmp_path / "out.mlir"), "none.mlir")
    assert_bad_input(flashlift("fuse", tmp_path, "-o", tmp_path / "out.mlir"), "folder")
    assert_bad_input(flashlift("fuse", causal_module, "-o", tmp_path / "no" / "out.mlir"), "out.mlir")
    same = tmp_path / "same"
    assert_bad_input(flashlift("fuse", causal_module, "-o", same, "--report", same), "--report")
    assert list(tmp_path.iterdir()) == []


def test_explain_of_a_missing_file(flashlift):
    assert_bad_input(flashlift("explain", "no_such_module.mlir"))


def draw(flashlift, tmp_path, problem, *options):
    path = tmp_path / "mask.svg"
    done = flashlift("draw", problem, "-o", path, *options)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == [path]
    return ElementTree.parse(path).getroot(), done.stdout


@pytest.mark.parametrize(
    "problem",
    [
        "attn h2 s1 d8",
        "attn h2 s300 d8 causal window=40",
        "attn h1 sq1 skv5000 d8",
        "attn h1 sq5000 skv3 d8 causal",
        "attn b2 h2 s64 d8 mask_mod(ids: i32[2, 64]) { %0 = load ids[b, q]; %1 = load ids[b, kv]; "
        "%2 = eq %0, %1; return %2 }",
    ],
)
def test_draw_writes_a_picture(flashlift, tmp_path, problem):
    picture, output = draw(flashlift, tmp_path, problem)
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    assert "tiles full" in output and "mask.svg" in output


def test_draw_of_an_unmasked_problem_has_only_full_tiles(flashlift, tmp_path):
    _, output = draw(flashlift, tmp_path, "attn h2 s1000 d8", "--q-tile", 100, "--kv-tile", 300)
    assert "40 tiles full, 0 partial, 0 skipped" in output


def test_draw_escapes_the_problem(flashlift, tmp_path):
    draw(flashlift, tmp_path, "attn h1 s8 d8 causal\n\tmask_mod() { %0 = lt kv, 3; return %0 }")


def test_draw_counts_tiles_as_json(flashlift, tmp_path):
    done = flashlift("draw", "attn h2 s1024 d8 causal", "-o", tmp_path / "mask.svg", "--json")
    counts = json.loads(done.stdout)
    assert counts["tiles"] == {"q_tile": 128, "kv_tile": 128, "full": 28, "partial": 8, "skipped": 28}
    assert_bad_input(flashlift("draw", "attn h2 s1024 d8", "-o", "-", "--json"), "--json", "leave out one")


def test_pictures_of_other_kinds_are_refused(flashlift, tmp_path):
    problem = "attn h1 s8 d8"
    for command in (["draw", problem, "-o"], ["bench", problem, "--seconds=0", "--plot"]):
        assert_bad_input(flashlift(*command, tmp_path / "a.png"), "another kind of picture", "a.svg")
    assert list(tmp_path.iterdir()) == []


def test_draw_is_repeatable(flashlift, tmp_path):
    problem = "attn h1 s512 d8 mask_mod(keep: bool[512]) { %0 = load keep[kv]; return %0 }"
    pictures = []
    for seed in (1, 1, 2):
        draw(flashlift, tmp_path, problem, "--seed", seed)
        pictures.append((tmp_path / "mask.svg").read_text())
    assert pictures[0] == pictures[1] != pictures[2]


@pytest.mark.parametrize("size", [0, -1, 99999999999999999999, "wide"])
def test_draw_refuses_a_tile_size_that_is_none(flashlift, tmp_path, size):
    done = flashlift("draw", "attn h1 s8 d8", "-o", tmp_path / "mask.svg", f"--q-tile={size}")
    assert_bad_input(done, "--q-tile", "flashlift draw --help")


def test_draw_refuses_a_head_that_is_not_there(flashlift, tmp_path):
    done = flashlift("draw", "attn h2 s8 d8", "-o", tmp_path / "mask.svg", "--head", 2)
    assert_bad_input(done, "--head is 2", "0 to 1")


def test_draw_refuses_more_tiles_than_a_picture_holds(flashlift, tmp_path):
    problem = "attn h1 s100000 d8 mask_mod(keep: bool[100000]) { %0 = load keep[kv]; return %0 }"
    done = flashlift("draw", problem, "-o", tmp_path / "mask.svg", "--q-tile", 1, "--kv-tile", 1)
    assert_bad_input(done, "--q-tile")


def test_draw_keeps_the_old_file_when_it_cannot_write(flashlift, tmp_path):
    assert_bad_input(flashlift("draw", "attn h2 s8 d8", "-o", tmp_path / "no" / "mask.svg"), "no/mask.svg")
    assert_bad_input(flashlift("draw", "attn h2 s8 d8", "-o", tmp_path), str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_info_lists_the_operations_of_programs(flashlift):
    rows = {row["name"]: row for row in json.loads(flashlift("info", "--ops", "--json").stdout)}
    assert rows["erf"] == {
        "name": "erf", "operands": 1, "kind": "function", "types": "f32 -> f32", "computes": "error function",
        "stablehlo": "chlo.erf", "aten": "erf special_erf",
    }  # fmt: skip
    assert rows["load"]["operands"] == -1
    assert rows["floor_div"]["types"] == "T, T -> T; T: i32, i64"
    assert rows["select"]["types"] == "i1, T, T -> T; T: i1, i32, i64, f32"
    assert rows["search"]["types"] == "T -> i32; T: i32, i64"
    text = flashlift("info", "--ops").stdout
    assert "error function" in text and "T, T -> T; T: i32, i64" in text


def test_info_lists_the_words_of_problems(flashlift):
    rows = {row["name"]: row for row in json.loads(flashlift("info", "--words", "--json").stdout)}
    assert rows["window"]["forms"] == ["window=<left>[,<right>]"]
    assert rows["segment_ids"]["captures"] == ["q_segments: i32[1|batch,q_len]", "kv_segments: i32[1|batch,kv_len]"]
    text, help_text = flashlift("info", "--words").stdout, flashlift("run", "--help").stdout
    for row in rows.values():
        for form in row["forms"]:
            assert form in text and form in help_text
    assert_bad_input(flashlift("info", "--words", "--ops"), "--ops")


def test_a_slip_is_answered_with_the_word_that_was_meant(flashlift):
    assert_bad_input(flashlift("run", "attn h2 s8 d8 causall"), "unknown word `causall`", "did you mean `causal`?")
    for other, name in {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "half": "f16"}.items():
        assert_bad_input(flashlift("run", f"attn h2 s8 d8 {other}"), f"did you mean `{name}`?")
