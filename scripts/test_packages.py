"""Installs the Debian package and the wheel on bare systems, and tests them there.

scripts/test_packages.py BUILD DEB WHEEL [SYSTEM...] [--keep]

debootstrap makes each system from its distribution's packages, so this needs root and a network, and half a GB for each
system while it is tested. Nothing in them was there when Flashlift was built: no LLVM, no compiler at first, another
glibc and another Python. The packages' names and Python's come from the system; numpy and JAX come from PyPI.
BUILD/venv lends its PyTorch and JAX to the system that has the same Python.
"""

import argparse
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEBIAN = "http://deb.debian.org/debian"
UBUNTU = "http://archive.ubuntu.com/ubuntu"
# Ubuntu's archive key, which Debian does not carry: https://wiki.ubuntu.com/SecurityTeam/FAQ
UBUNTU_KEYRING = f"{UBUNTU}/pool/main/u/ubuntu-keyring/ubuntu-keyring_2021.03.26_all.deb"
UBUNTU_KEY = "F6ECB3762474EDA9D21B7022871920D1991BC93C"
SYSTEMS = {
    "debian-12": (DEBIAN, "bookworm", "main"),
    "debian-13": (DEBIAN, "trixie", "main"),
    "ubuntu-22.04": (UBUNTU, "jammy", "main,universe"),
    "ubuntu-24.04": (UBUNTU, "noble", "main,universe"),
}
COMPILERS = ["g++", "cmake", "make", "pkg-config", "python3-venv"]
PIP_PLATFORMS = ["manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_27_x86_64", "manylinux_2_28_x86_64"]
OLDEST_PYTHON_OF_JAX = (3, 11)
NOBODY = "65534:65534"


def run(*command, **options):
    done = subprocess.run([str(one) for one in command], text=True, capture_output=True, **options)
    if done.returncode:
        sys.exit(f"failed: {' '.join(map(str, command))}\n{done.stdout[-6000:]}{done.stderr[-6000:]}")
    return done.stdout


@dataclass
class System:
    """A root folder with an installed distribution."""

    folder: Path
    lent: Path | None = None
    """A folder of this machine that is seen inside as /lent."""

    def run(self, *command, user="0:0"):
        """Runs in a separate mount namespace, so that nothing stays mounted if something fails."""
        lent = f"mount --bind {shlex.quote(str(self.lent))} {self.folder}/lent && " if self.lent else ""
        enter = (
            f"mount -t proc proc {self.folder}/proc && {lent}"
            f'exec chroot --userspec={user} {self.folder} env -i -C /tmp "$@"'
        )
        environment = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/nonexistent", "LC_ALL=C.UTF-8", "TMPDIR=/tmp"]
        environment += ["DEBIAN_FRONTEND=noninteractive"]
        return run("unshare", "--mount", "sh", "-c", enter, "sh", *environment, *command)

    def copy_in(self, path, name):
        target = self.folder / "tmp" / name
        if path.is_dir():
            shutil.copytree(path, target, dirs_exist_ok=True)
        else:
            shutil.copy(path, target)
        return f"/tmp/{name}"


def ubuntu_keyring(work):
    """The keyring with which debootstrap checks Ubuntu's signatures: only its archive key."""
    target = work / "ubuntu.gpg"
    if not target.exists():
        with urllib.request.urlopen(UBUNTU_KEYRING) as answer:
            (work / "keyring.deb").write_bytes(answer.read())
        run("dpkg", "-x", work / "keyring.deb", work / "keyring")
        keys = work / "keyring/usr/share/keyrings/ubuntu-archive-keyring.gpg"
        home = work / "gpg"
        home.mkdir(mode=0o700, exist_ok=True)
        run("gpg", "--homedir", home, "--import", keys)
        target.write_bytes(
            subprocess.run(["gpg", "--homedir", home, "--export", UBUNTU_KEY], check=True, capture_output=True).stdout
        )
        if not target.stat().st_size:
            sys.exit(f"{UBUNTU_KEYRING} does not hold the key {UBUNTU_KEY}")
    return target


def make_system(name, work):
    address, release, components = SYSTEMS[name]
    folder = work / name
    shutil.rmtree(folder, ignore_errors=True)
    options = ["--variant=minbase", f"--components={components}"]
    script = []
    if address == UBUNTU:
        options.append(f"--keyring={ubuntu_keyring(work)}")
        known = Path("/usr/share/debootstrap/scripts")
        script = [known / release if (known / release).exists() else known / "jammy"]
    run("debootstrap", *options, release, folder, address, *script)
    (folder / "lent").mkdir()
    return System(folder)


def check_debian_package(system, deb):
    """Checks, on a system without a compiler, that the package needs what it declares, and no more."""
    path = system.copy_in(deb, deb.name)
    system.run("dpkg", "--install", path)
    for document in ("README.md", "docs/tour.md"):
        for line in re.findall(r"^    build/bin/(flashlift .*)$", (ROOT / document).read_text(), re.MULTILINE):
            if "model.mlir" not in line:  # the reader's own
                system.run("sh", "-c", line)
    module = system.copy_in(ROOT / "examples/xla/attention.mlir", "attention.mlir")
    system.run("flashlift", "fuse", module, "-o", "/tmp/fused.mlir")
    assert "flashlift.attention" in (system.folder / "tmp/fused.mlir").read_text()
    system.run("flashlift", "run", "attn h2 s96 d32 causal", "--check", user=NOBODY)
    files = set(system.run("dpkg", "--listfiles", "flashlift").split("\n"))
    assert "/usr/share/doc/flashlift/copyright" in files, "a Debian package says its copyright"


def build_programs(system, name, package_folder, pkg_config_folder, library_folder):
    """Builds C and C++ programs with the installed package, by CMake and by pkg-config."""
    build = f"/tmp/{name}"
    where = [f"-Dflashlift_DIR={package_folder}"] if package_folder else []
    system.run("cmake", "-S", "/tmp/consumer", "-B", build, "-DEXAMPLES=/tmp/examples", "-DSTABLEHLO=ON", *where)
    system.run("cmake", "--build", build)
    for program in ("consumer", "c_consumer", "stablehlo_consumer"):
        system.run(f"{build}/{program}")
    path = f"PKG_CONFIG_PATH={pkg_config_folder}" if pkg_config_folder else "PKG_CONFIG_PATH="
    flags = system.run("env", path, "pkg-config", "--cflags", "--libs", "flashlift").split()
    rpath = [f"-Wl,-rpath,{library_folder}"] if library_folder else []
    system.run("cc", "/tmp/examples/attention.c", "-o", f"{build}/plain", *flags, *rpath)
    system.run(f"{build}/plain")


def download(python, version, requirements, folder):
    platforms = [f"--platform={one}" for one in PIP_PLATFORMS]
    run(python, "-m", "pip", "download", "--quiet", "--only-binary=:all:", f"--python-version={version}", *platforms,
        "--dest", folder, *requirements)  # fmt: skip


def check_wheel(system, wheel, python):
    version = system.run("python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
    has_jax = tuple(map(int, version.split("."))) >= OLDEST_PYTHON_OF_JAX
    same = run(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip() == version
    wheels = system.folder / "tmp" / "wheels"
    requirements = ["numpy"] if same or not has_jax else ["numpy", "jax", "jaxlib"]
    download(python, version, requirements, wheels)
    shutil.copy(wheel, wheels)

    system.run("python3", "-m", "venv", "/tmp/venv")
    install = ["/tmp/venv/bin/pip", "install", "--quiet", "--no-index", "--find-links=/tmp/wheels"]
    start = time.perf_counter()
    system.run(*install, "flashlift")
    print(f"  Python {version}: the wheel and numpy installed in {time.perf_counter() - start:.1f} s")
    modules = {"numpy"}
    if same:
        site = run(python, "-c", "import torch; print(torch.__path__[0])").strip()
        system.lent = Path(site).parent
        (system.folder / f"tmp/venv/lib/python{version}/site-packages/lent.pth").write_text("/lent\n")
        modules |= {"torch", "jax"}
    elif has_jax:
        system.run(*install, "jax", "jaxlib")
        modules |= {"jax"}

    ran = 0
    for i, block in enumerate(re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)):
        needed = set(re.findall(r"^(?:import|from) (torch|jax)\b", block, re.MULTILINE))
        if needed <= modules:
            (system.folder / f"tmp/block{i}.py").write_text(block)
            system.run("/tmp/venv/bin/python", f"/tmp/block{i}.py")
            ran += 1
    print(f"  {ran} Python examples of README.md ran, with {', '.join(sorted(modules))}")
    system.run("/tmp/venv/bin/flashlift", "run", "attn h2 s96 d32 causal", "--check")
    folders = [
        system.run("/tmp/venv/bin/python", "-m", "flashlift", f"--{one}-dir").strip()
        for one in ("cmake", "pkg-config", "library")
    ]
    build_programs(system, "from-wheel", *folders)


def check(name, deb, wheel, python, work, keep):
    print(f"==> {name}", flush=True)
    system = make_system(name, work)
    library = system.run("sh", "-c", "ldd --version | head -1").split()[-1]
    check_debian_package(system, deb)
    print(f"  glibc {library}: {deb.name} installed, commands of README.md and docs/tour.md ran", flush=True)
    shutil.copy("/etc/resolv.conf", system.folder / "etc/resolv.conf")
    system.run("apt-get", "update", "-qq")
    system.run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *COMPILERS)
    system.copy_in(ROOT / "tests/package/consumer", "consumer")
    system.copy_in(ROOT / "examples", "examples")
    build_programs(system, "from-deb", None, None, None)
    system.run("dpkg", "--purge", "flashlift")
    print("  C and C++ programs built and ran against the Debian package", flush=True)
    check_wheel(system, wheel, python)
    print("  C and C++ programs built and ran against the wheel", flush=True)
    if not keep:
        shutil.rmtree(system.folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("deb", type=Path)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("systems", nargs="*", metavar="SYSTEM", help=f"of {', '.join(SYSTEMS)}; all if none is named")
    parser.add_argument("--keep", action="store_true", help="do not remove the systems")
    options = parser.parse_args()
    if unknown := set(options.systems) - set(SYSTEMS):
        parser.error(f"there are the systems {', '.join(SYSTEMS)}, not {', '.join(unknown)}")
    work = (options.build / "systems").resolve()
    work.mkdir(parents=True, exist_ok=True)
    python = options.build.absolute() / "venv" / "bin" / "python"
    for name in options.systems or SYSTEMS:
        check(name, options.deb.resolve(), options.wheel.resolve(), python, work, options.keep)


if __name__ == "__main__":
    main()
