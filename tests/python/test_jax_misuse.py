"""flash_attention and dot_product_attention refuse wrong arguments before anything is compiled."""

import flashlift
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flashlift.jax import Executor, attention, dot_product_attention, flash_attention, flax_attention_fn
from test_jax_gradients import normal

B, SQ, SKV, HQ, HKV, D = 2, 37, 53, 6, 2, 24
Q, K, V = normal(B, SQ, HQ, D), normal(B, SKV, HKV, D), normal(B, SKV, HKV, 16)
KEPT = jnp.ones((B, SKV), bool)
IDS_Q, IDS_K = jnp.zeros((B, SQ), jnp.int32), jnp.zeros((B, SKV), jnp.int32)
NAN = float("nan")


@pytest.fixture(autouse=True)
def nothing_is_called(monkeypatch):
    """The errors must come from checks of the arguments, not from a compiled call."""
    monkeypatch.setattr(jax.ffi, "ffi_call", lambda *_, **__: pytest.fail("the call was built"))


def refused(message, *operands, function=flash_attention, **arguments):
    """Refused eagerly and while a program is traced."""
    for call in (function, jax.jit(lambda *operands: function(*operands, **arguments))):
        with pytest.raises(flashlift.FlashliftError, match=message):
            call(*(operands or (Q, K, V)), **(arguments if call is function else {}))


def test_the_fourth_argument_is_a_bias():
    refused("bias is bool; expected float32.* pass a mask as attention_mask=", Q, K, V, KEPT)
    refused("bias is int32; expected float32", Q, K, V, jnp.ones((SQ, SKV), jnp.int32))
    for function in flash_attention, dot_product_attention, flax_attention_fn:
        with pytest.raises(flashlift.InvalidArgumentError, match="bias is 0.125, a single number.* scale by its name"):
            function(Q, K, V, 0.125)
    refused(r"bias is float32\[\], a single number", Q, K, V, jnp.float32(0.125))
    # Flax's fifth argument is a mask.
    refused(r"cum_seqlens_q is bool\[2, 53\]; expected int32", K, K, V, None, KEPT)


@pytest.mark.parametrize(
    ("operands", "message"),
    [
        ((Q[0], K, V), r"query is float32\[37, 6, 24\]; expected 4 dimensions"),
        ((Q.astype(jnp.int32), K, V), "query is int32.*expected 4 dimensions"),
        ((Q.astype(jnp.bfloat16), K, V), "query is bfloat16, key is float32 .*one dtype: cast them"),
        ((Q, K, V.astype(jnp.float16)), "value is float16; expected one dtype"),
        ((Q, K, V[:, 1:]), "expected as many keys in both"),
        ((Q, K, V[:, :, 1:]), "expected as many heads in both"),
        ((Q[:1], K, V), "expected the same batches in both"),
        ((Q[..., 1:], K, V), "expected the same depth in both"),
        ((Q[:, :, :5], K, V), "query has 5 heads and key 2; expected a number that divides"),
        ((Q, K[:, :, :0], V[:, :, :0]), r"key is float32\[2, 53, 0, 24\], without heads; expected at least one"),
        ((jnp.zeros((1, 2, 1, 257)), jnp.zeros((1, 2, 1, 257)), jnp.zeros((1, 2, 1, 8))), "depth of 257"),
    ],
)
def test_operands_that_do_not_go_together(operands, message):
    refused(message, *operands)


def test_operands_that_are_no_arrays():
    with pytest.raises(flashlift.InvalidArgumentError, match="query is None; expected an array"):
        flash_attention(None, K, V)
    with pytest.raises(flashlift.InvalidArgumentError, match="q has 5 heads"):
        attention(Q[:, :, :5], K, V)


@pytest.mark.parametrize("name", ["attention_mask", "mask"])
def test_masks(name):
    additive = jnp.where(KEPT, 0.0, -jnp.inf)[:, None, None].at[0, 0, 0, 0].set(-jnp.inf)
    refused("as bias=", **{name: np.asarray(additive)})
    refused(r"\[q_len, kv_len\] as .*mask\[None, None\]", **{name: jnp.ones((SQ, SKV), bool)})
    refused(r"mask\[:, None\] for batches", **{name: jnp.ones((B, SQ, SKV), bool)})
    refused(r"does not broadcast to \[2, 6, 37, 53\]", **{name: jnp.ones((B, 3, SQ, SKV), bool)})
    refused(r"mask is \[2, 37\]; expected \[batch, kv_len\], \[2, 53\]", **{name: jnp.ones((B, SQ), bool)})
    refused("does not broadcast", **{name: jnp.ones((1, 1, 1, 1, 1), bool)})


def test_a_float_mask_is_refused_whatever_it_holds():
    refused("attention_mask is float32; expected booleans or integers", attention_mask=jnp.ones((B, 1, SQ, SKV)))
    with pytest.raises(flashlift.InvalidArgumentError, match="attention_mask != 0"):
        jax.jit(lambda mask: flash_attention(Q, K, V, attention_mask=mask))(jnp.ones((B, SKV)))


def test_the_same_argument_by_two_names():
    refused("attention_mask and mask are given", attention_mask=KEPT, mask=KEPT)
    refused("dropout_prob is 0.1 and dropout_rate 0.2", dropout_prob=0.1, dropout_rate=0.2, dropout_seed=1)
    refused(
        "both of dropout_seed and dropout_rng came", dropout_prob=0.1, dropout_seed=1, dropout_rng=jax.random.key(0)
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kv_segment_ids": IDS_K}, "only q_segment_ids may stand alone"),
        ({"q_segment_ids": IDS_Q}, "for as many keys as queries"),
        ({"q_segment_ids": IDS_K, "kv_segment_ids": IDS_K}, r"q_segment_ids is int32\[2, 53\]; expected .*\[2, 37\]"),
        ({"q_segment_ids": IDS_Q[0], "kv_segment_ids": IDS_K}, r"q_segment_ids is int32\[37\]"),
        (
            {"q_segment_ids": IDS_Q, "kv_segment_ids": IDS_K * 0.5},
            r"kv_segment_ids is float32\[2, 53\]; expected int32",
        ),
        ({"q_segment_ids": IDS_Q, "kv_segment_ids": IDS_K > 0}, r"kv_segment_ids is bool"),
        (
            {"q_segment_ids": IDS_Q, "kv_segment_ids": np.full((B, SKV), 1 << 40)},
            "kv_segment_ids has values from 1099511627776 to 1099511627776; expected int32",
        ),
    ],
)
def test_segments(arguments, message):
    refused(message, **arguments)


@pytest.mark.parametrize(
    ("ends_q", "ends_k", "message"),
    [
        (None, [0, SKV], "only cum_seqlens_q may stand alone"),
        ([0, SQ], None, "for as many keys as queries"),
        ([0, 10, SQ], [0, SKV], r"cum_seqlens_q is \[3\] and cum_seqlens_k \[2\]; expected one length"),
        ([0, 20, 10, SQ], [0, 1, 2, SKV], r"\[ 0, 20, 10, 37\]; expected cumulative lengths"),
        ([1, SQ], [0, SKV], "expected cumulative lengths: 0 first"),
        ([0, SQ + 1], [0, SKV], "expected at most 37"),
        ([0, SQ], [0, SKV + 1], "expected at most 53"),
        ([0], [0], r"expected int32 \[sequences \+ 1\]"),
        ([0.0, SQ], [0, SKV], r"cum_seqlens_q is float32\[2\]; expected int32"),
        ([[0, SQ]], [[0, SKV]], r"cum_seqlens_q is int32\[1, 2\]"),
    ],
)
def test_cumulative_lengths(ends_q, ends_k, message):
    given = {"cum_seqlens_q": ends_q, "cum_seqlens_k": ends_k}
    refused(message, Q[:1], K[:1], V[:1], **{name: ends and np.asarray(ends) for name, ends in given.items()})


def test_cumulative_lengths_of_a_batch():
    def ends(*values):
        return np.asarray(values, np.int32)

    refused(
        r"cum_seqlens_q is \[4\] for a batch of 2; expected \[3\]",
        cum_seqlens_q=ends(0, 9, 10, SQ),
        cum_seqlens_k=ends(0, 9, 10, SKV),
    )
    refused(
        "a sequence of 38; expected sequences of at most 37",
        cum_seqlens_q=ends(0, 38, 40),
        cum_seqlens_k=ends(0, 9, 10),
    )
    refused("pack the sequences", cum_seqlens_q=ends(0, 9, 20), cum_seqlens_k=ends(0, 9, 20), causal="bottom_right")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dropout_seed": 1}, "dropout_seed was given without dropout_prob"),
        ({"dropout_prob": -0.1}, "dropout_prob is -0.1; expected a probability"),
        ({"dropout_prob": 1.0, "dropout_seed": 1}, "dropout_prob is 1.0; expected a probability"),
        ({"dropout_prob": NAN}, "dropout_prob is nan"),
        ({"dropout_rate": 1.5}, "dropout_rate is 1.5"),
        ({"dropout_prob": "0.1"}, "dropout_prob is '0.1'; expected a number"),
        ({"dropout_prob": 0.1}, "neither of dropout_seed and dropout_rng came"),
        ({"dropout_prob": 0.1, "dropout_seed": 1 << 64}, "expected an integer of 64 bits"),
        ({"dropout_prob": 0.1, "dropout_seed": True}, "dropout_seed is True; expected a key"),
        ({"dropout_prob": 0.1, "dropout_seed": 1.5}, r"dropout_seed is float32\[\]"),
        ({"dropout_prob": 0.1, "dropout_seed": np.zeros(3, np.uint32)}, r"dropout_seed is uint32\[3\]"),
        (
            {"dropout_prob": 0.1, "dropout_seed": 1, "deterministic": "no"},
            "deterministic is 'no'; expected True or False",
        ),
        ({"logits_soft_cap": NAN}, "logits_soft_cap is nan; expected a positive number"),
        ({"logits_soft_cap": 0}, "expected a positive number"),
        ({"logits_soft_cap": -30.0}, "expected a positive number"),
        ({"logits_soft_cap": float("inf")}, "None for no cap"),
        ({"logits_soft_cap": True}, "logits_soft_cap is True; expected a number"),
        ({"softmax_scale": NAN}, "softmax_scale is nan; expected a finite number"),
        ({"softmax_scale": 1e39}, "expected a finite number"),
        ({"softmax_scale": "auto"}, "softmax_scale is 'auto'; expected a number"),
        ({"softmax_scale": np.ones(3)}, r"softmax_scale is float64\[3\]; expected a number"),
        ({"sliding_window": -1}, "sliding_window is -1; expected"),
        ({"sliding_window": (3, -1)}, r"sliding_window is \(3, -1\); expected"),
        ({"sliding_window": 2.5}, "sliding_window is 2.5; expected"),
        ({"sliding_window": "4"}, "sliding_window is '4'"),
        ({"sliding_window": np.asarray([1.0, 2.0])}, r"sliding_window is float64\[2\]"),
        ({"sliding_window": (1, 2, 3)}, r"sliding_window is \(1, 2, 3\)"),
        ({"sliding_window": True}, "sliding_window is True"),
        ({"causal": "top"}, 'causal is "top"; expected True, False or "bottom_right"'),
        ({"causal": 2}, "causal is 2"),
        ({"causal": None}, "causal is None"),
        ({"normalize_output": "no"}, "normalize_output is 'no'"),
        ({"return_lse": 3}, "return_lse is 3"),
        ({"precision": "nonsense"}, "precision is 'nonsense'; expected None, a jax.lax.Precision"),
        ({"precision": 7}, "precision is 7"),
        ({"precision": ("high", "low")}, "precision is 'low'"),
        ({"causal": np.ones(1, bool)}, r"causal is bool\[1\]; expected True or False"),
        ({"precision": "F64_F64_F64"}, "products are float32's"),
        ({"logits_dtype": jnp.int8}, "logits_dtype is int8"),
        ({"dtype": jnp.float64}, "dtype is float64; expected float32, bfloat16, float16"),
        ({"dtype": "nonsense"}, "dtype is 'nonsense'; expected float32"),
        ({"logits_dtype": "nonsense"}, "logits_dtype is 'nonsense'"),
        ({"empty_rows": "no"}, "empty_rows is 'no'; expected one of zero, uniform, nan"),
        ({"platform": "triton"}, 'platform is "triton"; expected'),
        ({"platform": 5}, 'platform is "5"; expected'),
        ({"softmax_aux": np.zeros((3, 2), np.float32)}, r"softmax_aux is float32\[3, 2\]; expected sinks .*\[6, n\]"),
        ({"softmax_aux": np.zeros((HQ, 0), np.float32)}, "expected sinks"),
        ({"softmax_aux": np.float32(1)}, r"softmax_aux is float32\[\]"),
        ({"softmax_aux": np.zeros(2, np.int32)}, "softmax_aux is int32"),
        ({"module": object()}, "leave sow_weights out"),
        ({"qk_attn_weights_einsum": jnp.einsum}, "leave .*einsum out"),
    ],
)
def test_values(arguments, message):
    refused(message, **arguments)


@pytest.mark.parametrize("name", ["softmax_scale", "logits_soft_cap", "sliding_window", "causal", "dropout_prob"])
def test_traced_where_a_value_is_needed(name):
    with pytest.raises(flashlift.InvalidArgumentError, match=f"{name} is .*known when the call is traced"):
        jax.jit(lambda value: flash_attention(Q, K, V, **{name: value}))(1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mask": jnp.ones((SQ, SKV))}, "mask is float32; expected booleans"),
        ({"mask": jnp.ones((5, SQ, SKV), bool)}, r"^mask is \[1, 5, 37, 53\], which does not broadcast"),
        ({"bias": jnp.ones((5, SQ, SKV))}, r"bias is \[1, 5, 37, 53\], which does not broadcast"),
        ({"key_value_seq_lengths": np.asarray([3])}, r"key_value_seq_lengths is int.*\[1\]; expected int32 \[2\]"),
        ({"query_seq_lengths": np.asarray([3.0, 4.0])}, "query_seq_lengths is float"),
        ({"local_window_size": -1}, "local_window_size is -1"),
        ({"scale": NAN}, "^scale is nan; expected a finite number"),
        ({"implementation": "triton"}, 'implementation is "triton"; expected None'),
        ({"is_causal": "yes"}, "is_causal is 'yes'"),
    ],
)
def test_dot_product_attention(arguments, message):
    refused(message, function=dot_product_attention, **arguments)


@pytest.mark.parametrize(("name", "advice"), [("scale", "pass scale=1.0"), ("local_window_size", "None is no window")])
def test_dot_product_attention_of_traced_numbers(name, advice):
    with pytest.raises(flashlift.InvalidArgumentError, match=f"^{name} is .*known when the call is traced.*{advice}"):
        jax.jit(lambda value: dot_product_attention(Q, K, V, **{name: value}))(1)


def test_dot_product_attention_of_other_dimensions():
    refused(r"query is float32\[37, 6, 24\], key is", Q[0], K, V, function=dot_product_attention)


@pytest.mark.parametrize("word", ["keep_mask", "page_size=8", "residual", "row_max"])
def test_words_that_a_call_in_jax_does_not_have(word):
    q, k, v = (jnp.ones((1, 8, 2, 8), jnp.bfloat16) for _ in range(3))
    with pytest.raises(flashlift.UnsupportedError, match=f"the features have {word.split('=')[0]}, for which a call"):
        attention(q, k, v, word)


def test_a_chooser_that_is_none():
    with pytest.raises(flashlift.InvalidArgumentError, match="chooser is 3; expected a ConfigSelectorChain, or None"):
        Executor(3)


HEADS = "score_mod(t: f32[heads]) { %0 = load t[h]; %1 = mul score, %0; return %1 }"
PLANE = "score_mod(t: f32[1|batch,kv_len,3,?]) { %0 = load t[b, kv, h, q]; %1 = mul score, %0; return %1 }"


@pytest.mark.parametrize(
    ("features", "captures", "message"),
    [
        (HEADS, [normal(HQ, 1)], r"captured tensor t is float32\[6, 1\]; expected float32 \[6 \(heads\)\]"),
        (HEADS, [normal(HQ + 1)], r"captured tensor t is float32\[7\]; expected float32 \[6 \(heads\)\]"),
        (HEADS, {"t": jnp.ones(HQ, jnp.int32)}, r"captured tensor t is int32\[6\]; expected float32 \[6"),
        (HEADS.replace("heads", "4"), [normal(HQ)], r"t is float32\[6\]; expected float32 \[4\]"),
        (PLANE, [normal(3, SKV, 3, 1)], r"expected float32 \[1 or 2 \(batch\), 53 \(kv_len\), 3, any\]"),
        ("segment_ids", {"q_segments": IDS_Q, "kv_segments": IDS_K[:, 1:]}, r"kv_segments is int32\[2, 52\]; expected"),
        ("mask=bool", [jnp.ones((1, 1, 1, SKV), jnp.int32)], "captured tensor mask is int32.*expected bool"),
        ("mask=bool mask_mod() { return false }", [jnp.ones(3, bool)], r"tensor mask is bool\[3\]; expected bool"),
        (HEADS, [object()], "captured tensor t is <object.*expected an array"),
        (HEADS, [], "captures are 0 tensors; the features read t: expected each of them once"),
        (HEADS, {"u": normal(HQ)}, "captures are u; the features read t: expected each of them once"),
        (HEADS, None, "captures is None; expected arrays by name, or a list of arrays"),
        (HEADS, "t", "captures is 't'; expected arrays by name"),
        (HEADS, normal(HQ), "captures is float32.*expected arrays by name"),
    ],
)
def test_captured_tensors(features, captures, message):
    call = lambda q, k, v: attention(q, k, v, features, captures=captures)
    refused(message, Q, K, V, function=call)


def test_sizes_that_are_the_same():
    features = "cu_seqlens"
    ends = {"cu_seqlens_q": jnp.arange(3, dtype=jnp.int32), "cu_seqlens_kv": jnp.arange(4, dtype=jnp.int32)}
    call = lambda q, k, v: attention(q, k, v, features, captures=ends)
    refused(r"cu_seqlens_kv is int32\[4\]; expected int32 \[3 \(n\)\]", Q[:1], K[:1], V[:1], function=call)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"features": None}, "features is None; expected words of a problem"),
        ({"features": 3}, "features is 3; expected words of a problem"),
        ({"features": "sinks=1"}, "features have sinks=1, and the argument sinks is none; expected as many there"),
        ({"features": "sinks=2", "sinks": jnp.ones((HQ, 1))}, r"have sinks=2.*sinks is float32\[6, 1\]; expected"),
        ({"implementation": 3}, "implementation is 3; expected its name, or None"),
    ],
)
def test_words(arguments, message):
    refused(message, Q, K, V, function=lambda q, k, v: attention(q, k, v, **arguments))


def test_no_heads():
    refused(r"query is float32\[2, 37, 0, 24\], without heads; expected at least one", Q[:, :, :0], K, V)
