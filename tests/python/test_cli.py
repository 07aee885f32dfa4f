"""The command line as its users see it: output, exit codes, and what bad input gives."""

import json
import os
import subprocess

import pytest

SUBCOMMANDS = ["info"]


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


def test_no_subcommand_is_a_wrong_call(flashlift):
    assert_bad_input(flashlift(), "subcommand", "flashlift --help")


def test_unknown_subcommand_is_a_wrong_call(flashlift):
    assert_bad_input(flashlift("fly"), "fly", "flashlift --help")


def test_unknown_option_names_the_subcommand_to_ask(flashlift):
    assert_bad_input(flashlift("info", "--fast"), "--fast", "flashlift info --help")


def test_full_disk_is_an_error(flashlift):
    program = flashlift("--version").args[0]
    with open("/dev/full", "w") as full:
        done = subprocess.run([program, "info"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and "standard output" in done.stderr


def test_info_shows_the_environment_table(flashlift):
    environment = {**os.environ, "FLASHLIFT_LOG": "warning"}
    info = json.loads(flashlift("info", "--json", env=environment).stdout)
    variables = {entry["name"]: entry for entry in info["environment"]}
    assert 1 <= len(variables) <= 12
    assert all(name.startswith("FLASHLIFT_") and entry["meaning"] for name, entry in variables.items())
    assert variables["FLASHLIFT_LOG"]["value"] == "warning"
    for name in variables:
        assert name in flashlift("info").stdout
