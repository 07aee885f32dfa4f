"""Outputs of the command line: either all files or none, each complete, in the file that a name stands for, and no
others.
"""

import os
import resource
import stat
import subprocess
import threading

import pytest

PROBLEM = "attn h1 s64 d8 causal"


@pytest.fixture(scope="session")
def picture(flashlift, tmp_path_factory):
    """The picture that `draw` writes for PROBLEM."""
    path = tmp_path_factory.mktemp("picture") / "p.svg"
    assert flashlift("draw", PROBLEM, "-o", path).returncode == 0
    return path.read_text()


@pytest.fixture
def module(root, tmp_path):
    path = tmp_path / "module.mlir"
    path.write_text((root / "tests" / "fuzz" / "seeds" / "module" / "causal.mlir").read_text())
    return path


def assert_refused(done, *words):
    assert done.returncode == 2 and done.stdout == "" and done.stderr.startswith("error: "), done
    for word in words:
        assert str(word) in done.stderr, f"{word!r} is not in: {done.stderr}"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def limit_of_files(size):
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_a_link_is_followed(flashlift, tmp_path, picture):
    (tmp_path / "target.svg").write_text("old")
    for link, target in [("link.svg", "target.svg"), ("second.svg", "link.svg"), ("new.svg", "absent.svg")]:
        (tmp_path / link).symlink_to(target)
    for name in ("second.svg", "new.svg"):
        assert flashlift("draw", PROBLEM, "-o", tmp_path / name).returncode == 0
    assert (tmp_path / "target.svg").read_text() == (tmp_path / "absent.svg").read_text() == picture
    assert all((tmp_path / name).is_symlink() for name in ("link.svg", "second.svg", "new.svg"))
    (tmp_path / "circle").symlink_to("circle")
    assert_refused(flashlift("draw", PROBLEM, "-o", tmp_path / "circle"), "circle")


def test_every_name_of_a_file_keeps_its_content(flashlift, tmp_path, picture):
    (tmp_path / "a").write_text("old" * 100000)
    os.link(tmp_path / "a", tmp_path / "b")
    assert flashlift("draw", PROBLEM, "-o", tmp_path / "a").returncode == 0
    assert (tmp_path / "b").read_text() == picture and names(tmp_path) == ["a", "b"]


def test_modes_are_kept(flashlift, tmp_path):
    path = tmp_path / "mask.svg"
    before = os.umask(0o027)
    try:
        assert flashlift("draw", PROBLEM, "-o", path).returncode == 0
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        for mode in (0o600, 0o666, 0o755):
            path.chmod(mode)
            assert flashlift("draw", PROBLEM, "-o", path).returncode == 0
            assert stat.S_IMODE(path.stat().st_mode) == mode
    finally:
        os.umask(before)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root writes into others' files")
def test_owners_are_kept(flashlift, tmp_path):
    path = tmp_path / "mask.svg"
    path.write_text("old")
    os.chown(path, 12345, 12346)
    assert flashlift("draw", PROBLEM, "-o", path).returncode == 0
    assert (path.stat().st_uid, path.stat().st_gid) == (12345, 12346)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_what_may_not_be_written_stays(flashlift, tmp_path, picture):
    (tmp_path / "f").write_text("old")
    (tmp_path / "f").chmod(0o400)
    assert_refused(flashlift("draw", PROBLEM, "-o", tmp_path / "f"), "Permission denied")
    (tmp_path / "f").chmod(0o600)
    tmp_path.chmod(0o500)  # no new file can take its place
    try:
        assert_refused(flashlift("draw", PROBLEM, "-o", tmp_path / "g"), "Permission denied")
        assert flashlift("draw", PROBLEM, "-o", tmp_path / "f").returncode == 0
    finally:
        tmp_path.chmod(0o700)
    assert (tmp_path / "f").read_text() == picture


def test_a_pipe_is_written_into(flashlift, tmp_path, picture):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    assert flashlift("draw", PROBLEM, "-o", pipe).returncode == 0
    reader.join()
    assert read == [picture] and stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("name", ["-", "/dev/stdout", "/proc/self/fd/1"])
def test_standard_output_takes_the_picture_alone(flashlift, tmp_path, picture, name):
    done = flashlift("draw", PROBLEM, "-o", name, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout == picture and "tiles full" in done.stderr
    # Into a file, where the name could be taken for the file's own.
    with (tmp_path / "redirected").open("w") as file:
        file.write("before\n")
        file.flush()
        subprocess.run([done.args[0], "draw", PROBLEM, "-o", name], stdout=file, stderr=subprocess.DEVNULL, check=True)
        os.write(file.fileno(), b"after\n")
    assert (tmp_path / "redirected").read_text() == f"before\n{picture}after\n"
    assert os.path.islink("/dev/stdout") and names(tmp_path) == ["redirected"]


def test_open_files_are_written_into(flashlift, tmp_path, picture):
    program = flashlift("--version").args[0]
    with (tmp_path / "log").open("a") as file:
        file.write("before\n")
        file.flush()
        number = file.fileno()
        command = [program, "draw", PROBLEM, "-o", f"/dev/fd/{number}"]
        subprocess.run(command, stdout=subprocess.DEVNULL, pass_fds=[number], check=True)
    assert (tmp_path / "log").read_text() == "before\n" + picture


def test_devices_stay_devices(flashlift, tmp_path):
    null = tmp_path / "null"
    if os.geteuid() == 0:
        try:
            os.mknod(null, stat.S_IFCHR | 0o666, os.makedev(1, 3))
            null.write_text("x")
        except OSError:  # a container that has no devices of its own
            null = "/dev/null"
    else:
        null = "/dev/null"
    done = flashlift("draw", PROBLEM, "-o", null)
    assert done.returncode == 0 and "tiles full" in done.stdout
    assert stat.S_ISCHR(os.stat(null).st_mode)
    assert_refused(flashlift("draw", PROBLEM, "-o", "/dev/full"), "/dev/full", "No space")
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


@pytest.mark.parametrize("name", ["", ".", "folder", "folder/", "absent/", "absent/f", "file/", "file/f", "x" * 300])
def test_names_of_no_file_are_refused_before_any_work(flashlift, tmp_path, name):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("old")
    for command in (["draw", PROBLEM, "-o", name], ["fuse", "absent.mlir", "-o", "ok", "--report", name]):
        if name == "" and command[0] == "fuse":
            continue  # no report is asked for
        assert_refused(flashlift(*command, cwd=tmp_path), "-o" if command[0] == "draw" else "--report")
    assert names(tmp_path) == ["file", "folder"] and (tmp_path / "file").read_text() == "old"


def spellings_of_one_file(folder):
    """Pairs of names of the same file, with the files that must exist before."""
    (folder / "there").write_text("old")
    (folder / "sub").mkdir()
    os.link(folder / "there", folder / "hard")
    (folder / "soft").symlink_to("there")
    (folder / "dangling").symlink_to("new")
    return [
        ("new", "new"), ("new", "./new"), ("new", "sub/../new"), ("new", str(folder / "new")), ("new", "dangling"),
        ("there", "there"), ("there", "hard"), ("there", "soft"), ("soft", "hard"), ("-", "-"), ("-", "/dev/stdout"),
    ]  # fmt: skip


def test_two_outputs_are_never_one_file(flashlift, tmp_path, module):
    for output, report in spellings_of_one_file(tmp_path):
        for first, second in ((output, report), (report, output)):
            done = flashlift("fuse", module, "-o", first, "--report", second, cwd=tmp_path)
            assert_refused(done, "-o", "--report", "same")
    assert (tmp_path / "there").read_text() == "old" and not (tmp_path / "new").exists()


def test_a_report_never_replaces_its_module(flashlift, tmp_path, module):
    text = module.read_text()
    (tmp_path / "link").symlink_to(module)
    for report in ("module.mlir", "./module.mlir", "link"):
        assert_refused(flashlift("fuse", module, "-o", "out", "--report", report, cwd=tmp_path), "--report", "module")
    assert module.read_text() == text and not (tmp_path / "out").exists()


def test_all_outputs_or_none(flashlift, tmp_path, module):
    for existed in (False, True):
        if existed:
            (tmp_path / "out").write_text("old")
        before = names(tmp_path)
        for report in ("/dev/full", "absent/report", tmp_path):
            done = flashlift("fuse", module, "-o", tmp_path / "out", "--report", report)
            assert_refused(done, "--report", report)
            assert names(tmp_path) == before
        assert not existed or (tmp_path / "out").read_text() == "old"
    # The other way round.
    assert_refused(flashlift("fuse", module, "-o", "/dev/full", "--report", tmp_path / "report"), "-o")
    assert names(tmp_path) == before


def test_module_and_report_may_go_to_standard_output(flashlift, tmp_path, module):
    done = flashlift("fuse", module, "-o", "-", "--report", tmp_path / "report.json")
    assert done.returncode == 0 and "flashlift.attention" in done.stdout and "1 of 1 fused" in done.stderr
    assert done.stdout == flashlift("fuse", module, "-o", "/dev/stdout").stdout
    done = flashlift("fuse", module, "-o", "/dev/null", "--report", "-")
    assert done.returncode == 0 and done.stdout == (tmp_path / "report.json").read_text().replace(
        '"output": "-"', '"output": "/dev/null"'
    )
    for outputs in (["-o", "-"], ["-o", tmp_path / "out", "--report", "-"]):
        assert_refused(flashlift("fuse", module, *outputs, "--json"), "--json")


def test_a_limit_of_file_sizes_leaves_things_as_they_were(flashlift, tmp_path, module):
    (tmp_path / "old").write_text("old")
    (tmp_path / "hard").write_text("old")
    os.link(tmp_path / "hard", tmp_path / "hard2")
    before = names(tmp_path)
    for name in ("new", "old", "hard"):
        done = flashlift("draw", PROBLEM, "-o", tmp_path / name, preexec_fn=limit_of_files(100))
        assert_refused(done, name, "File too large")
        done = flashlift("fuse", module, "-o", tmp_path / name, preexec_fn=limit_of_files(100))
        assert_refused(done, name, "File too large")
    assert names(tmp_path) == before
    assert (tmp_path / "old").read_text() == (tmp_path / "hard").read_text() == "old"


def test_a_reader_that_is_gone_is_an_error(flashlift, tmp_path, module):
    program = flashlift("--version").args[0]
    for command in (
        ["info"],
        ["explain", PROBLEM, "--code"],
        ["draw", PROBLEM, "-o", "-"],
        ["fuse", module, "-o", "-", "--report", tmp_path / "r"],
    ):
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run([program, *command], stdout=write, stderr=subprocess.PIPE, text=True)
        os.close(write)
        assert done.returncode == 2 and "error: " in done.stderr, done
        assert "disk full" not in done.stderr, done
    assert names(tmp_path) == ["module.mlir"]


def test_closed_streams_take_nothing(flashlift, tmp_path, picture):
    """The file must not get the number of a standard stream: printed text would go into it."""
    program = flashlift("--version").args[0]
    for streams in ("<&- >&- 2>&-", ">&-", "2>&-", "<&-"):
        shell = ["sh", "-c", f'exec "$@" {streams}', "sh", program, "draw", PROBLEM, "-o", tmp_path / "p.svg"]
        done = subprocess.run(shell, capture_output=True, text=True)
        assert done.returncode == (2 if ">&-" in streams.split() else 0), done
        assert (tmp_path / "p.svg").read_text() == picture
    done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", program, "draw", PROBLEM, "-o", "-"], capture_output=True)
    assert done.returncode == 2 and b"error: " in done.stderr
