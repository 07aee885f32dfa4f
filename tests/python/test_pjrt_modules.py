"""Unusual modules that clients may send: libflashlift_pjrt must give the same results as the plugin alone."""

import json
import sys

import numpy as np
import pytest
from test_pjrt import HERE, PLUGINS, WRAPPER, each_plugin, on_cuda, read_report, run

plugin_modules = pytest.importorskip("plugin_modules", reason="needs pypjrt") if PLUGINS else None


@each_plugin
def test_modules_of_all_kinds(plugin, tmp_path):
    if on_cuda(plugin):
        pytest.skip("compares with the precision of CPUs")
    report = tmp_path / "report.jsonl"
    for library, results in ((plugin, "without.json"), (WRAPPER, "with.json")):
        run(sys.executable, HERE / "plugin_modules.py", library, tmp_path / results, plugin=plugin, report=report)
    without, through = (json.loads((tmp_path / name).read_text()) for name in ("without.json", "with.json"))
    for (name, (_, expected)), told in zip(plugin_modules.MODULES.items(), read_report(report), strict=True):
        own, ours = without[name], through[name]
        if expected is None:
            assert ours == own and "error" in own, (name, own, ours)
        elif isinstance(expected, str):
            assert "No FFI handler registered for flashlift.attention" in own["error"], (name, own)
            assert ("results" in ours) == (expected == "runs"), (name, ours)
            assert expected == "runs" or "attribute problem is missing" in ours["error"], (name, ours)
        else:
            assert told["fused"] == expected, (name, told)
            if name in ("no_batches", "no_heads", "no_keys"):
                assert told["reason"].startswith("a dimension of the probabilities has size 0 (at ")
            assert ours["aliased"] == own["aliased"], name
            for (own_type, own_shape, own_values), (type_name, shape, values) in zip(
                own["results"], ours["results"], strict=True
            ):
                assert (type_name, shape) == (own_type, own_shape), name
                np.testing.assert_allclose(values, own_values, atol=2e-5, rtol=2e-5, err_msg=name)
