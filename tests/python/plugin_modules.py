"""Modules that clients may send, with and without attention; tests/python/test_pjrt_modules.py runs them.

    plugin_modules.py PLUGIN RESULTS

writes what comes of each, the error or the results, as JSON.
"""

import json
import re
import sys

import numpy as np
import pypjrt
from pjrt_run import BY_NUMBER, NUMBERS

PROBLEM = (
    'problem = "attn b1 h4 sq8 skv8 d16 f32", q_dims = "bhsd", k_dims = "bhsd", v_dims = "bhsd", out_dims = "bhsd"'
)


def attention(q="%q", k="%k", v="%v", out="%o", rows="1x4x8", depth=16):
    """out = softmax(q kᵀ) v, with scores %0 and probabilities %p"""
    tensor, plane = f"tensor<{rows}x{depth}xf32>", f"tensor<{rows}x{rows.split('x')[-1]}xf32>"
    row = f"tensor<{rows}xf32>"
    return f"""
    %0 = stablehlo.dot_general {q}, {k}, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3]
      : ({tensor}, {tensor}) -> {plane}
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %1 = stablehlo.reduce(%0 init: %low) applies stablehlo.maximum across dimensions = [3]
      : ({plane}, tensor<f32>) -> {row}
    %2 = stablehlo.broadcast_in_dim %1, dims = [0, 1, 2] : ({row}) -> {plane}
    %3 = stablehlo.subtract %0, %2 : {plane}
    %4 = stablehlo.exponential %3 : {plane}
    %5 = stablehlo.reduce(%4 init: %zero) applies stablehlo.add across dimensions = [3]
      : ({plane}, tensor<f32>) -> {row}
    %6 = stablehlo.broadcast_in_dim %5, dims = [0, 1, 2] : ({row}) -> {plane}
    %p = stablehlo.divide %4, %6 : {plane}
    {out} = stablehlo.dot_general %p, {v}, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2]
      : ({plane}, {tensor}) -> {tensor}
"""


QKV = "%q: T, %k: T, %v: T"
ONE = attention() + "return %o : T"


def main(body=ONE, arguments=QKV, results="T", before="", module="module @m", rows="1x4x8", depth=16):
    text = f"{module} {{\n{before}\nfunc.func public @main({arguments}) -> ({results}) {{\n{body}\n}}\n}}"
    text = text.replace("PLANE", "tensor<1x4x8x8xf32>")
    return re.sub(r"\bT\b", f"tensor<{rows}x{depth}xf32>", text)


def function(name, body=ONE):
    return f"func.func private @{name}({QKV}) -> T {{\n{body}\n}}"


def call_of(target, attributes, results="T"):
    return attention() + f"%a = stablehlo.custom_call @{target}(%o, %k, %v) {{{attributes}}} : (T, T, T) -> {results}\n"


def by_multiplying(one, one_dims, other, other_dims, summed, result, sizes):
    """A product as a sum of multiplications."""
    wide = "tensor<1x4x8x8x16xf32>"
    return f"""
    {result}_0 = stablehlo.broadcast_in_dim {one}, dims = {one_dims} : ({"PLANE" if one == "%p" else "T"}) -> {wide}
    {result}_1 = stablehlo.broadcast_in_dim {other}, dims = {other_dims} : (T) -> {wide}
    {result}_2 = stablehlo.multiply {result}_0, {result}_1 : {wide}
    {result}_3 = stablehlo.constant dense<0.0> : tensor<f32>
    {result} = stablehlo.reduce({result}_2 init: {result}_3) applies stablehlo.add across dimensions = [{summed}]
      : ({wide}, tensor<f32>) -> {sizes}
"""


def without_dots():
    text = attention()
    middle = text[text.index("%zero =") : text.index("%o =")].replace("%0", "%s")
    return (
        by_multiplying("%q", [0, 1, 2, 4], "%k", [0, 1, 3, 4], 4, "%s", "PLANE")
        + middle
        + by_multiplying("%p", [0, 1, 2, 3], "%v", [0, 1, 3, 4], 3, "%o", "T")
    )


def with_powers():
    base = "%base = stablehlo.constant dense<2.0> : PLANE\n"
    return base + attention().replace("stablehlo.exponential %3", "stablehlo.power %base, %3")


SUM = "(tensor<i32>, tensor<i32>) -> tensor<i1>"
TUPLE = "tuple<T, tensor<0xui8>>"
BOUNDED = "tensor<1x4x?x16xf32, #stablehlo.bounds<?, ?, 8, ?>>"
LOOP = """%zero_i = stablehlo.constant dense<0> : tensor<i32>
  %one_i = stablehlo.constant dense<1> : tensor<i32>
  %three_i = stablehlo.constant dense<3> : tensor<i32>
  %r:2 = stablehlo.while(%x = %q, %i = %zero_i) : T, tensor<i32>
  cond { COND } do { DO
    %next = stablehlo.add %i, %one_i : tensor<i32>
    stablehlo.return %y, %next : T, tensor<i32>
  }
  return %r#0 : T"""
COUNT = f"%c = stablehlo.compare LT, %i, %three_i : {SUM}\n"
SMALL = (
    attention(q="%x")
    + """%s = stablehlo.reduce(%o init: %zero) applies stablehlo.add across dimensions = [0, 1, 2, 3]
    : (T, tensor<f32>) -> tensor<f32>
    %b = stablehlo.compare LT, %s, %zero : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %both = stablehlo.and %b, %c : tensor<i1>
    stablehlo.return %both : tensor<i1>"""
)

# name: the module, and the number of fused attentions. None: the plugin refuses the module for the same reason as
# without Flashlift. "runs", "other error": without Flashlift, the plugin does not know our calls.
MODULES = {
    # properties of arguments and results
    "donated": (main(arguments="%q: T {jax.buffer_donor = true}, %k: T {tf.aliasing_output = 0 : i32}, %v: T"), 1),
    "aliased_and_returned": (
        main(attention() + "return %k, %o : T, T", results="T, T",
             arguments="%q: T {tf.aliasing_output = 0 : i32}, %k: T {tf.aliasing_output = 1 : i32}, %v: T"), 1),
    "aliased_to_nothing": (main(arguments="%q: T {tf.aliasing_output = 7 : i32}, %k: T, %v: T"), None),
    "layouts": (main(arguments='%q: T {mhlo.layout_mode = "{0,1,2,3}"}, %k: T, %v: T {mhlo.layout_mode = "auto"}',
                     results='T {mhlo.layout_mode = "{0,2,1,3}"}'), 1),
    "memory": (main(arguments='%q: T {mhlo.memory_kind = "device"}, %k: T, %v: T'), 1),
    "unknown_attributes": (main(module="module @m attributes {foo.bar = 3 : i7, mhlo.is_dynamic = true}",
                                results='T {foo.baz, jax.result_info = "\\FF\\00\\C3"}'), 1),
    "one_argument": (main(attention(k="%q", v="%q") + "return %o : T", arguments="%q: T"), 1),
    "nothing_is_returned": (main(attention() + "return", results=""), 0),
    "result_is_not_used": (main(attention() + "return %q : T"), 0),
    "probabilities": (main(attention() + "return %o, %p : T, PLANE", results="T, PLANE"), 0),
    "returned_twice": (main(attention() + "return %o, %o, %q : T, T, T", results="T, T, T"), 1),
    # functions
    "two_calls": (main("%a = call @f(%q, %k, %v) : (T, T, T) -> T\n %b = call @f(%a, %k, %v) : (T, T, T) -> T\n"
                       "return %b : T", before=function("f")), 2),
    "named_like_the_call": (main("%a = call @flashlift.attention(%q, %k, %v) : (T, T, T) -> T\n return %a : T",
                                 before=function("flashlift.attention")), 1),
    "no_main": (main().replace("@main", "@entry"), None),
    "composite_that_lies": (
        main(f'%a = stablehlo.composite "flashlift.attention" %q, %k, %v {{composite_attributes = {{{PROBLEM}}}, '
             "decomposition = @d, version = 1 : i32} : (T, T, T) -> T\n return %a : T",
             before=function("d", attention() + "%y = stablehlo.sine %o : T\n return %y : T")), 1),
    "composite_of_nothing": (main(attention() + '%a = stablehlo.composite "x.y" %o '
                                  "{decomposition = @nowhere} : (T) -> T\n"
                                  "return %a : T"), None),
    # calls
    "our_call": (main(call_of("flashlift.attention", f"api_version = 4 : i32, backend_config = {{{PROBLEM}}}")
                      + "return %a : T"), "runs"),
    "our_call_without_a_problem": (main(call_of("flashlift.attention", "api_version = 4 : i32, backend_config = {}")
                                        + "return %a : T"), "other error"),
    "our_call_of_another_kind": (main(call_of("flashlift.attention", 'backend_config = "x"') + "return %a : T"), None),
    "cudnn_without_configuration": (main(call_of("__cudnn$fmhaSoftmax", "") + "return %a : T"), None),
    "cudnn_unknown": (main(call_of("__cudnn$fmhaOfTomorrow", 'api_version = 2 : i32, backend_config = "{}"')
                           + "return %a : T"), None),
    "cudnn_tuple": (main(call_of("__cudnn$fmhaSoftmax", 'api_version = 2 : i32, backend_config = "{}"', TUPLE)
                         + f"%b = stablehlo.get_tuple_element %a[0] : ({TUPLE}) -> T\n return %b : T"), None),
    "side_effect": (main(attention() + "stablehlo.custom_call @Sharding(%o) {has_side_effect = true, "
                         'mhlo.sharding = "{replicated}"} : (T) -> T\n return %o : T'), 1),
    # spellings
    "powers": (main(with_powers() + "return %o : T"), 1),
    "multiplied_sums": (main(without_dots() + "return %o : T"), 1),
    # types
    "tuple": (main("%t = stablehlo.tuple %q, %k : tuple<T, T>\n"
                   "%x = stablehlo.get_tuple_element %t[0] : (tuple<T, T>) -> T"
                   + attention(q="%x") + "return %o : T"), 1),
    "token": (main("%t = stablehlo.create_token : !stablehlo.token\n" + attention()
                   + "%u = stablehlo.after_all %t, %t : !stablehlo.token\n return %o : T"), 1),
    "bounded": (main(attention() + "%n = stablehlo.constant dense<4> : tensor<i32>\n"
                     f"%x = stablehlo.set_dimension_size %o, %n, dim = 2 : (T, tensor<i32>) -> {BOUNDED}\n"
                     f"%y = stablehlo.get_dimension_size %x, dim = 2 : ({BOUNDED}) -> tensor<i32>\n"
                     "return %o, %y : T, tensor<i32>", results="T, tensor<i32>"), 1),
    "no_batches": (main(attention(rows="0x4x8") + "return %o : T", rows="0x4x8"), 0),
    "no_heads": (main(attention(rows="1x0x8") + "return %o : T", rows="1x0x8"), 0),
    "no_keys": (main(attention(rows="1x4x0") + "return %o : T", rows="1x4x0"), 0),
    "no_depth": (main(attention(depth=0) + "return %o : T", depth=0), 0),
    "one_element": (main(attention(rows="1x1x1", depth=1) + "return %o : T", rows="1x1x1", depth=1), 0),
    # regions
    "loop": (main(LOOP.replace("COND", COUNT + "stablehlo.return %c : tensor<i1>")
                  .replace("DO", attention(q="%x", out="%y"))), 1),
    "condition_of_a_loop": (main(LOOP.replace("COND", COUNT + SMALL)
                                 .replace("DO", "%y = stablehlo.negate %x : T")), 1),
    "branch": (main('%r = "stablehlo.if"(%c) ({' + attention()
                    + "stablehlo.return %o : T }, { stablehlo.return %q : T })"
                    ": (tensor<i1>) -> T\n return %r : T", arguments=QKV + ", %c: tensor<i1>"), 1),
    # modules
    "replicas": (main(module="module @m attributes {mhlo.num_replicas = 2 : i32}"), 1),
    "partitions": (main(module="module @m attributes {mhlo.num_partitions = 4000000000000 : i64}"), 0),
    "no_number_of_partitions": (main(module='module @m attributes {mhlo.num_partitions = "x"}'), 1),
    "odd_name": (main(module='module @"mö\\01 ä"'), 1),
    "without_a_module": (main()[len("module @m {"):-1], 1),
    "carriage_returns": (main().replace("\n", "\r\n"), 1),
    "resource": (main(attention() + "%w = stablehlo.constant dense_resource<w> : tensor<2xf32>\n"
                      "return %o, %w : T, tensor<2xf32>", results="T, tensor<2xf32>")
                 + '\n{-# dialect_resources: { builtin: { w: "0x040000000000803F00000040" } } #-}', None),
}  # fmt: skip


def arguments_of(text):
    rng = np.random.default_rng(0)
    inside = re.search(r"@(?:main|entry)\((.*?)\) -> ", text, re.DOTALL)[1]
    for sizes, dtype in re.findall(r": tensor<((?:\d+x)*)(f32|i1)>", inside):
        values = rng.normal(size=[int(size) for size in sizes.split("x")[:-1]])
        yield values.astype(np.float32) if dtype == "f32" else values > 0


def outcome(client, device, text):
    try:
        executable = client.compile(text)
        buffers = []
        for one in arguments_of(text):
            content = one.reshape(-1).view(np.uint8) if one.size else np.zeros(1, np.uint8)
            buffers.append(client.buffer_from_host(content, NUMBERS[one.dtype.name], list(one.shape), device))
        results = []
        for output in executable(*buffers):
            result = np.empty(output.dimensions, BY_NUMBER[int(output.element_type)])
            if result.size:
                output.to_host(result.reshape(-1).view(np.uint8))
            results.append([result.dtype.name, result.shape, result.astype(np.float64).reshape(-1).tolist()])
        return {"results": results, "aliased": executable.compiled_memory_stats()["alias_size_in_bytes"]}
    except pypjrt.errors.PjrtError as error:
        return {"error": str(error)}


if __name__ == "__main__":
    with pypjrt.Client.create(sys.argv[1]) as of_plugin, of_plugin.devices() as devices:
        found = {name: outcome(of_plugin, devices[0], text) for name, (text, _) in MODULES.items()}
    with open(sys.argv[2], "w") as file:
        json.dump(found, file)
