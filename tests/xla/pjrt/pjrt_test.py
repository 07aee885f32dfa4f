"""libflashlift_pjrt around a fake plugin: bad plugins, bad programs, many threads.

    pjrt_test.py BUILD FAKE_PLUGIN

Needs nothing but Python. Each case has a process of its own, since a wrapper wraps one plugin for good.
"""

import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

P, Size = ctypes.c_void_p, ctypes.c_size_t
ERROR_MESSAGE, CLIENT_CREATE, CLIENT_VERSION, CLIENT_COMPILE, TOPOLOGY_VERSION, COMPILE = 1, 10, 14, 20, 85, 89

ATTENTION = """
module @jit_attention {
  func.func public @main(%q: tensor<1x4x8x16xf32> {tf.aliasing_output = 0 : i32}, %k: tensor<1x4x8x16xf32>,
                         %v: tensor<1x4x8x16xf32>) -> (tensor<1x4x8x16xf32> {jax.result_info = "out"}) {
    %0 = stablehlo.dot_general %q, %k, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3]
      : (tensor<1x4x8x16xf32>, tensor<1x4x8x16xf32>) -> tensor<1x4x8x8xf32>
    %1 = stablehlo.exponential %0 : tensor<1x4x8x8xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [3]
      : (tensor<1x4x8x8xf32>, tensor<f32>) -> tensor<1x4x8xf32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [0, 1, 2] : (tensor<1x4x8xf32>) -> tensor<1x4x8x8xf32>
    %4 = stablehlo.divide %1, %3 : tensor<1x4x8x8xf32>
    %5 = stablehlo.dot_general %4, %v, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2]
      : (tensor<1x4x8x8xf32>, tensor<1x4x8x16xf32>) -> tensor<1x4x8x16xf32>
    return %5 : tensor<1x4x8x16xf32>
  }
}
"""
ONE_PARTITION, TWO_PARTITIONS = b"\x1a\x04\x20\x01\x28\x01", b"\x1a\x04\x20\x01\x28\x02"


class Program(ctypes.Structure):
    _fields_ = [
        ("struct_size", Size),
        ("extensions", P),
        ("code", P),
        ("code_size", Size),
        ("format", ctypes.c_char_p),
        ("format_size", Size),
        ("behind", ctypes.c_int64),
    ]


class CompileArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", Size),
        ("extensions", P),
        ("client", P),
        ("program", ctypes.POINTER(Program)),
        ("options", ctypes.c_char_p),
        ("options_size", Size),
        ("executable", ctypes.c_char_p),
    ]


class TopologyCompileArgs(ctypes.Structure):
    _fields_ = CompileArgs._fields_[:-1] + [("on_client", P), ("executable", ctypes.c_char_p)]


class TextArgs(ctypes.Structure):  # for a platform's name and version, and for an error's message
    _fields_ = [("struct_size", Size), ("extensions", P), ("object", P), ("text", P), ("size", Size)]


class Plugin:
    """Calls a plugin as a client does; runs in a new process."""

    def __init__(self, path):
        library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        library.GetPjrtApi.restype = P
        self.api = library.GetPjrtApi()
        assert self.api and library.GetPjrtApi() == self.api

    def call(self, slot, args):
        """The error's text, or None."""
        function = ctypes.cast(self.api + 40 + 8 * slot, ctypes.POINTER(P))[0]
        error = ctypes.CFUNCTYPE(P, P)(function)(ctypes.byref(args))
        return None if error is None else self.text(ERROR_MESSAGE, error)

    def text(self, slot, of=None):
        args = TextArgs(ctypes.sizeof(TextArgs), None, of, None, 0)
        function = ctypes.cast(self.api + 40 + 8 * slot, ctypes.POINTER(P))[0]
        ctypes.CFUNCTYPE(P, P)(function)(ctypes.byref(args))
        return ctypes.string_at(args.text, args.size).decode()

    def compile(self, code, format="mlir", options=ONE_PARTITION, behind=None, topology=False):
        code, format = code.encode() if isinstance(code, str) else code, format.encode()
        size = 48 if behind is None else 56
        address = ctypes.cast(ctypes.c_char_p(code), P).value
        program = Program(size, None, address, len(code), format, len(format), behind or 0)
        pointer = ctypes.pointer(program)
        kind = TopologyCompileArgs if topology else CompileArgs
        args = kind(ctypes.sizeof(kind), None, None, pointer, options, len(options or b""))
        error = self.call(COMPILE if topology else CLIENT_COMPILE, args)
        assert ctypes.addressof(args.program.contents) == ctypes.addressof(program), "the client's pointer was changed"
        assert program.code == address and program.code_size == len(code), "the client's program was changed"
        return f"error: {error}" if error else args.executable.decode(errors="replace")


def in_a_process(test, plugin, behaviour="", wrapper=None, log="off", asks="", report=None):
    """Runs the function `test` of this file in a new process, or only requests the plugin's functions. Returns the
    printed text, the log, and the reports."""
    with tempfile.TemporaryDirectory() as folder:
        report = report or Path(folder) / "report.jsonl"
        environment = {**os.environ, "FAKE_PJRT": behaviour, "FLASHLIFT_PJRT_REPORT": str(report), "FLASHLIFT_LOG": log}
        environment.pop("FLASHLIFT_PJRT_PLUGIN", None)
        if asks:
            environment["FAKE_PJRT_ASKS"] = str(asks)
        if plugin is not None:
            environment["FLASHLIFT_PJRT_PLUGIN"] = str(plugin)
        ran = subprocess.run(
            [sys.executable, __file__, "--run", test.__name__ if test else "", str(wrapper or WRAPPER)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert ran.returncode == 0, f"{test} exits with {ran.returncode}: {ran.stdout}{ran.stderr}"
        lines = report.read_text().splitlines() if os.path.isfile(report) else []
        return ran.stdout, ran.stderr, [json.loads(line) for line in lines]


# --- what runs in these processes ---


def nothing(plugin):
    pass


def create_client(plugin):
    print(plugin.call(CLIENT_CREATE, TextArgs(ctypes.sizeof(TextArgs))))


def read_error_by_its_functions(plugin):
    """As clients of PJRT 0.112 and later may, in which an error begins with a pointer to its functions."""
    create = ctypes.cast(plugin.api + 40 + 8 * CLIENT_CREATE, ctypes.POINTER(P))[0]
    error = ctypes.CFUNCTYPE(P, P)(create)(ctypes.byref(TextArgs(ctypes.sizeof(TextArgs))))
    functions = ctypes.cast(ctypes.cast(error, ctypes.POINTER(P))[0], ctypes.POINTER(P))
    text, size = ctypes.c_char_p(), Size()
    ctypes.CFUNCTYPE(None, P, P, P)(functions[4])(error, ctypes.byref(text), ctypes.byref(size))
    print(ctypes.CFUNCTYPE(ctypes.c_int, P)(functions[5])(error), text.value[: size.value].decode())
    ctypes.CFUNCTYPE(None, P, P, P)(functions[6])(error, None, None)
    ctypes.CFUNCTYPE(None, P)(functions[3])(error)


def compile_attention(plugin):
    print(plugin.compile(ATTENTION))


def compile_others(plugin):
    """Each program, and what the wrapped plugin received for it."""
    cases = {
        "bytecode": (b"ML\xefR\x0dStableHLO_v1.16.1\x00 exponential dot_general", "mlir", ONE_PARTITION),
        "no attention": (ATTENTION.replace("exponential", "sine"), "mlir", ONE_PARTITION),
        "hlo": (b"exponential dot_general", "hlo", ONE_PARTITION),
        "partitioned": (ATTENTION, "mlir", TWO_PARTITIONS),
        "partitioned by attribute": (
            ATTENTION.replace("jit_attention", "jit_attention attributes {mhlo.num_partitions = 2 : i32}"),
            "mlir",
            ONE_PARTITION,
        ),
        "no options": (ATTENTION, "mlir", b"\xff\xff"),
        "broken": (ATTENTION[:-20], "mlir", ONE_PARTITION),
        "empty": (b"", "mlir", ONE_PARTITION),
        "four bytes": (b"ML\xefR", "mlir", ONE_PARTITION),
    }
    for name, (code, format, options) in cases.items():
        came = plugin.compile(code, format, options)
        expected = code if isinstance(code, str) else code.split(b"\0")[0].decode(errors="replace")
        print(name, "as it came" if came == expected else f"changed: {came}")


def compile_ways(plugin):
    print("fused" if '"flashlift.attention"' in plugin.compile(ATTENTION, behind=4711) else "unfused")
    print(plugin.compile(ATTENTION, behind=4711).splitlines()[0])
    print("fused" if '"flashlift.attention"' in plugin.compile(ATTENTION, topology=True) else "unfused")
    print("fused" if '"flashlift.attention"' in plugin.compile(ATTENTION, options=None) else "unfused")


def compile_in_threads(plugin):
    def work(number):
        for _ in range(5):
            name = f"jit_{number}"
            code = plugin.compile(ATTENTION.replace("jit_attention", name))
            found.append(f"module @{name} " in code and '"flashlift.attention"' in code)

    found = []
    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(len(found), all(found))


def versions(plugin):
    print(repr(plugin.text(CLIENT_VERSION)), repr(plugin.text(TOPOLOGY_VERSION)))


def load_and_unload(plugin):
    handle = ctypes.CDLL(WRAPPER)
    for _ in range(3):
        ctypes.CDLL(None).dlclose(P(handle._handle))
    print('"flashlift.attention"' in plugin.compile(ATTENTION))


# --- the tests ---


class PluginTest(unittest.TestCase):
    def folder(self):
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        return Path(made.name)


class BadPlugins(PluginTest):
    def assert_says(self, plugin, *words, **how):
        out, _, reports = in_a_process(create_client, plugin, **how)
        for word in (*words, "FLASHLIFT_PJRT_PLUGIN"):
            self.assertIn(word, out)
        self.assertEqual(reports, [])

    def test_no_library(self):
        folder = self.folder()
        text = folder / "text.so"
        text.write_text("no library\n" * 100)
        thirty_two = folder / "thirty_two.so"
        content = bytearray(Path(FAKE).read_bytes())
        content[4] = 1  # ELFCLASS32
        thirty_two.write_bytes(content)
        arm = folder / "arm.so"
        content[4], content[18] = 2, 183
        arm.write_bytes(content)
        empty = folder / "empty.so"
        empty.touch()
        fifo = folder / "fifo.so"
        os.mkfifo(fifo)
        self.assert_says("/nowhere/plugin.so", "/nowhere/plugin.so", "no such file")
        self.assert_says("plugin.so", "absolute path")
        self.assert_says(folder, "it is not a file")
        self.assert_says(fifo, "it is not a file")
        self.assert_says(text, "invalid ELF header")
        self.assert_says(thirty_two, "ELFCLASS32")
        self.assert_says(arm, "arm.so: cannot open")
        self.assert_says(empty, "file too short")
        self.assert_says(BUILD / "libflashlift_xla.so", "GetPjrtApi is missing")

    def test_cut_off(self):
        """A file that a broken download left: the loader would end the process."""
        content = Path(FAKE).read_bytes()
        cut = self.folder() / "cut.so"
        for size in (70, 2000, len(content) // 2):
            cut.write_bytes(content[:size])
            self.assert_says(cut, "is cut off" if size > 64 else "too short")

    def test_error_of_later_versions(self):
        out, _, _ = in_a_process(read_error_by_its_functions, "/nowhere/plugin.so")
        self.assertTrue(out.startswith("9 Flashlift's PJRT plugin: /nowhere/plugin.so cannot be wrapped: there is no"))

    def test_nothing_named(self):
        self.assert_says(None, "no PJRT plugin to wrap was found")

    def test_itself(self):
        folder = self.folder()
        link = folder / "link.so"
        link.symlink_to(WRAPPER)
        copy = Path(shutil.copy(WRAPPER, folder / "copy.so"))
        self.assert_says(WRAPPER, "this library itself")
        self.assert_says(link, "this library itself")
        self.assert_says(copy, "this library under another name")

    def test_no_plugin(self):
        self.assert_says(FAKE, "returned NULL", behaviour="null")
        self.assert_says(FAKE, "struct_size of 0 bytes", behaviour="empty")
        self.assert_says(FAKE, "it is not a PJRT plugin", behaviour="garbage")

    def test_no_functions(self):
        """Structures and lists that end early, or never."""
        for behaviour in ("circle", "null_ffi", "circle headless"):
            out, log, _ = in_a_process(
                versions if "headless" not in behaviour else nothing, FAKE, behaviour, log="error"
            )
            self.assertIn("nothing is fused", log)
            self.assertNotIn("flashlift", out)
        in_a_process(nothing, FAKE, "headless")
        for behaviour in ("no_name", "no_names"):
            out, _, reports = in_a_process(compile_attention, FAKE, behaviour)
            self.assertEqual(out, ATTENTION + "\n")
            self.assertIn("no kernels for platform", reports[0]["reason"])
        self.assertIn("flashlift", in_a_process(versions, FAKE, "no_name")[0])
        for behaviour in ("no_errors", "no_text"):
            out, _, reports = in_a_process(compile_attention, FAKE, f"{behaviour} refuses_fused")
            self.assertEqual(out, ATTENTION + "\n")
            self.assertIn("an error without a message", reports[0]["reason"])

    def test_throws(self):
        out, _, reports = in_a_process(compile_attention, FAKE, "throws")
        self.assertEqual(out, ATTENTION + "\n")
        self.assertIn("the plugin throws", reports[0]["reason"])
        out, log, _ = in_a_process(None, FAKE, "throws_at_once", log="error")
        self.assertEqual(out, "None\n")
        self.assertIn("threw an exception", log)

    def test_wraps_the_wrapper(self):
        """Another's wrapper, which leads back to this one: it gets nothing, and we get nothing from it."""
        self.assert_says(FAKE, "returned NULL", asks=WRAPPER)

    def test_report_that_cannot_be_written(self):
        folder = self.folder()
        os.mkfifo(folder / "pipe")
        for report in (folder / "pipe", folder, "/dev/full", folder / "no" / "folder", "x" * 5000):
            out, log, _ = in_a_process(compile_attention, FAKE, log="warning", report=report)
            self.assertIn('"flashlift.attention"', out)
            self.assertIn("cannot be written", log)

    def test_found_beside(self):
        folder = self.folder()
        wrapper = folder / "pjrt_c_api_flashlift-cpu_plugin.so"
        wrapper.symlink_to(WRAPPER)
        (folder / "pjrt_c_api_cpu_plugin.so").symlink_to(FAKE)
        out, _, _ = in_a_process(compile_attention, None, wrapper=wrapper)
        self.assertIn('"flashlift.attention"', out)
        # A name that contains CUDA finds no plugin for CPUs.
        cuda = folder / "pjrt_c_api_flashlift-cuda_plugin.so"
        cuda.symlink_to(WRAPPER)
        self.assert_says(None, "no PJRT plugin to wrap", wrapper=cuda)

    def test_named_from_its_folder(self):
        """Libraries in a folder that the client changes to afterwards are not loaded."""
        folder, elsewhere = self.folder(), self.folder()
        for place in (folder, elsewhere):
            (place / "pjrt_c_api_flashlift-cpu_plugin.so").symlink_to(WRAPPER)
            (place / "pjrt_c_api_cpu_plugin.so").symlink_to(FAKE)
        code = (
            f"import ctypes, os; os.chdir({str(folder)!r}); "
            "wrapper = ctypes.CDLL('./pjrt_c_api_flashlift-cpu_plugin.so'); "
            f"os.chdir({str(elsewhere)!r}); wrapper.GetPjrtApi()"
        )
        environment = {**os.environ, "FLASHLIFT_LOG": "info"}
        environment.pop("FLASHLIFT_PJRT_PLUGIN", None)
        ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
        self.assertIn(f"wraps {folder}/", ran.stderr)
        self.assertEqual(ran.returncode, 0)

    def test_untouched(self):
        """Plugins into which Flashlift cannot hook work as without the wrapper; the log gives the reason."""
        for behaviour, why in {
            "old": "version 0.56",
            "major": "version 1.106",
            "no_ffi": "no PJRT extension",
            "small_ffi": "40 bytes",
            "ffi_0.2": "this runtime has 0.2",
            "refuses_handlers": "the fake takes no handlers",
            "asks_nothing": "did not ask",
        }.items():
            with self.subTest(behaviour):
                out, log, reports = in_a_process(compile_attention, FAKE, behaviour, log="error")
                self.assertEqual(out, ATTENTION + "\n")
                self.assertIn(why, log)
                self.assertIn("nothing is fused", log)
                self.assertEqual(reports, [])

    def test_short_table(self):
        """A table that ends before the last function that is replaced."""
        out, _, _ = in_a_process(compile_attention, FAKE, "short")
        self.assertIn('"flashlift.attention"', out)


class Programs(PluginTest):
    def test_fused(self):
        out, log, reports = in_a_process(compile_attention, FAKE, "prints", log="info")
        self.assertIn("custom_call", out)
        self.assertIn("tf.aliasing_output = 0 : i32", out)
        self.assertIn('jax.result_info = "out"', out)
        for handler in ("attention Host", "attention_backward Host", "attention CUDA", "attention_backward CUDA"):
            self.assertIn("flashlift." + handler, out)
        self.assertIn("module jit_attention", log)
        self.assertIn("1 attention fused", log)
        (report,) = reports
        self.assertEqual(
            (report["module"], report["form"], report["fused"], report["reason"], report["failed"]),
            ("jit_attention", "text", 1, "", False),
        )
        self.assertEqual(report["bytes"], len(ATTENTION))
        self.assertTrue(report["candidates"][0]["problem"].startswith("attn b1 hq4 hkv4 sq8 skv8 dqk16 dv16 f32"))

    def test_ways(self):
        out, _, _ = in_a_process(compile_ways, FAKE)
        self.assertEqual(out.splitlines(), ["fused", "behind: 4711", "fused", "fused"])

    def test_left_as_they_came(self):
        out, _, reports = in_a_process(compile_others, FAKE)
        self.assertNotIn("changed", out)
        self.assertEqual(len(reports), len(out.splitlines()))
        self.assertTrue(all(report["reason"] and report["fused"] == 0 for report in reports))
        reasons = [report["reason"] for report in reports]
        self.assertIn("compiled for 2 partitions", reasons[3])
        self.assertIn("compiled for 2 partitions", reasons[4])
        self.assertIn("compile options", reasons[5])

    def test_fused_does_not_compile(self):
        out, _, reports = in_a_process(compile_attention, FAKE, "refuses_fused")
        self.assertEqual(out, ATTENTION + "\n")
        self.assertIn("the fake refuses fused modules", reports[0]["reason"])
        self.assertEqual(reports[0]["fused"], 0)

    def test_nothing_compiles(self):
        """The client gets the error in its own program, not in ours."""
        out, _, reports = in_a_process(compile_attention, FAKE, "refuses_all")
        self.assertEqual(out, "error: the fake refuses all modules\n")
        self.assertTrue(reports[0]["failed"])

    def test_other_platform(self):
        out, _, reports = in_a_process(compile_attention, FAKE, "tpu")
        self.assertEqual(out, ATTENTION + "\n")
        self.assertIn("platform 'tpu'", reports[0]["reason"])

    def test_without_mlir(self):
        """A libflashlift_stablehlo that cannot be loaded, as if MLIR were missing."""
        folder = self.folder()
        for name in (WRAPPER.name, "libflashlift_xla.so"):
            shutil.copy(BUILD / name, folder / name)
        (folder / "libflashlift_stablehlo.so").touch()
        out, _, reports = in_a_process(compile_attention, FAKE, wrapper=folder / WRAPPER.name)
        self.assertEqual(out, ATTENTION + "\n")
        self.assertIn("libflashlift_stablehlo.so", reports[0]["reason"])

    def test_without_own_libraries(self):
        """A copy of the plugin's file without Flashlift's other libraries, or with one that cannot be loaded."""
        folder = self.folder()
        wrapper = Path(shutil.copy(WRAPPER, folder / WRAPPER.name))
        for copied, why in (
            ([], f"{folder}/libflashlift_xla.so: there is no such file; keep Flashlift's libraries in the folder"),
            (["libflashlift_xla.so"], f"{folder}/libflashlift_stablehlo.so: there is no such file"),
        ):
            for name in copied:
                shutil.copy(BUILD / name, folder / name)
            out, log, reports = in_a_process(create_client, FAKE, wrapper=wrapper, log="error")
            self.assertIn(why, out)
            self.assertIn(why, log)
            self.assertEqual(reports, [])
        (folder / "libflashlift_stablehlo.so").touch()
        (folder / "libflashlift_xla.so").write_text("no library\n" * 100)
        out, _, _ = in_a_process(create_client, FAKE, wrapper=wrapper)
        self.assertIn(f"{folder}/libflashlift_xla.so: invalid ELF header; keep Flashlift's libraries", out)

    def test_threads(self):
        out, _, reports = in_a_process(compile_in_threads, FAKE)
        self.assertEqual(out, "40 True\n")
        self.assertEqual(len(reports), 40)

    def test_versions(self):
        out, _, _ = in_a_process(versions, FAKE)
        self.assertEqual(out.count(r"'fake 1.2\nflashlift "), 2)

    def test_names(self):
        """Names of the standard library would meet those of the process."""
        shown = subprocess.run(["nm", "-D", "--defined-only", WRAPPER], text=True, capture_output=True, check=True)
        names = [line.split()[-1] for line in shown.stdout.splitlines()]
        self.assertEqual(sorted(names), ["GetPjrtApi", "flashlift_pjrt_is_a_wrapper"])

    def test_unload(self):
        out, _, _ = in_a_process(load_and_unload, FAKE)
        self.assertEqual(out, "True\n")


if __name__ == "__main__":
    if sys.argv[1] == "--run":
        WRAPPER = sys.argv[3]
        if sys.argv[2]:
            globals()[sys.argv[2]](Plugin(WRAPPER))
        else:
            get = ctypes.CDLL(WRAPPER).GetPjrtApi
            get.restype = P
            print(get())
    else:
        BUILD, FAKE = (Path(argument).resolve() for argument in sys.argv[1:3])
        WRAPPER = BUILD / "libflashlift_pjrt.so"
        unittest.main(argv=sys.argv[:1] + sys.argv[3:])
