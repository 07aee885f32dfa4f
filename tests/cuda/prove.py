"""Proves a build on a machine with a GPU: random problems against the oracle, and compute-sanitizer.

    python tests/cuda/prove.py build/bin/cuda_device_test [--problems N] [--directions forward,backward] [--jobs N]
        [--seed N] [--sanitize TOOL ...]

--problems counts those of each direction. Forward they are for the chosen kernel, for the portable one, and whatever a
problem's description allows, a third each; backward all are of the last kind, each by every kernel that takes it. The
oracle takes longer than the GPU, so they are split over processes. --sanitize runs few small problems under each named
tool of compute-sanitizer. The exit status is 0 if nothing failed.
"""

import argparse
import os
import re
import subprocess
import sys
import time

RANDOM = {
    "forward": ["Device.Random*", "Device.ThePortable*", "Device.Drawn*"],
    "backward": ["DeviceBackward.Drawn*"],
}
ALL = {"forward": "Device.*", "backward": "DeviceBackward*:*/DeviceBackward*"}
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")


def start(command, **environment):
    return subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def prove_random(test, directions, problems, jobs, seed):
    """The text of the failures, and the number of problems that ran."""
    processes = []
    count = 0
    for direction in directions:
        tests = RANDOM[direction]
        each = -(-problems // (len(tests) * jobs))
        count += each * len(tests) * jobs
        processes += [
            start(
                [test, "--gtest_brief=1"],
                FLASHLIFT_TEST_PROBLEMS=str(each),
                FLASHLIFT_TEST_SEED=str(seed + each * job),
                GTEST_FILTER=":".join(tests) if job > 0 else ALL[direction],  # the fixed problems once
            )
            for job in range(jobs)
        ]
    failed = []
    for process in processes:
        output = process.communicate()[0]
        if process.returncode != 0:
            failed.append(output)
    return failed, count


def sanitize(test, directions, tools):
    """(tool, passed, output) of each tool; the tools run at the same time."""
    tests = ":".join(name for direction in directions for name in RANDOM[direction])
    command = ["compute-sanitizer", "--error-exitcode", "9", "--print-limit", "5"]
    processes = {
        tool: start(
            [*command, "--tool", tool, test, "--gtest_brief=1"],
            FLASHLIFT_TEST_PROBLEMS="2",
            GTEST_FILTER=f"{tests}:Device.*NotFinite*:Device.Huge*" if tool == "memcheck" else tests,
        )
        for tool in tools
    }
    for tool, process in processes.items():
        output = process.communicate()[0]
        yield tool, process.returncode == 0, output


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("test", help="the program cuda_device_test")
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--directions", default="forward,backward")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sanitize", nargs="*", default=[], choices=TOOLS)
    arguments = parser.parse_args()
    directions = arguments.directions.split(",")
    if unknown := set(directions) - RANDOM.keys():
        parser.error(f"--directions: unknown {', '.join(sorted(unknown))}; expected forward, backward, or both")
    passed = True
    if arguments.problems > 0:
        begin = time.perf_counter()
        failed, count = prove_random(arguments.test, directions, arguments.problems, arguments.jobs, arguments.seed)
        for output in failed:
            print(output)
        seconds = time.perf_counter() - begin
        print(f"{count} random problems in {seconds:.0f} s: {len(failed)} processes found failures")
        passed = not failed
    for tool, clean, output in sanitize(arguments.test, directions, arguments.sanitize):
        summary = re.findall(r"=+ (?:ERROR|RACECHECK) SUMMARY.*", output)
        print(f"{tool}: {'clean' if clean else 'NOT CLEAN'} {' '.join(summary)}")
        if not clean:
            print(output[-4000:])
        passed = passed and clean
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
