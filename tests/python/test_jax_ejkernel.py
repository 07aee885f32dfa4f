"""ejkernel's interface: its function's whole signature, MaskInfo, module, executor, configurations and caches."""

import dataclasses
import os

import flashlift
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flashlift import jax as fj
from flashlift.jax import FlashAttention, FlashAttentionConfig, MaskInfo, dot_product_attention, flash_attention
from jax.sharding import PartitionSpec as P
from test_jax_gradients import normal

B, S, H, D = 2, 19, 4, 8
Q, K, V = normal(B, S, H, D), normal(B, S, 2, D), normal(B, S, 2, D)
IDS = jnp.asarray(np.sort(np.random.default_rng(0).integers(-1, 3, (B, S))), jnp.int32)


def by_mask(mask):
    return flash_attention(Q, K, V, attention_mask=mask)


def infos():
    segments = MaskInfo.from_segments(IDS)
    table = jnp.asarray(np.random.default_rng(1).random((B, 1, S, S)) < 0.5)
    types = jnp.asarray(np.random.default_rng(2).integers(0, 3, (B, S)))
    yield segments
    yield segments.apply_causal().apply_sliding_window((4, 2))
    yield segments.apply_sliding_window((None, 2)).apply_sliding_window((1 << 40, None), offset=3)
    yield segments.apply_causal(jnp.asarray([2, -1])).apply_sliding_window(5, offset=jnp.asarray([0, 3]))
    yield MaskInfo.from_attention_mask(table).apply_chunked(6, offset=2)
    yield MaskInfo.from_attention_mask(table[:, 0]).apply_kv_lengths(jnp.asarray([4, S]))
    yield MaskInfo.from_attention_mask(table[:, 0, 0], mask_is_valid=False)
    padded = MaskInfo.from_segments(types, is_attn_mask=True)
    yield padded.apply_token_type_ids(types, combine="intersect", zero_policy="both")
    yield padded.apply_causal().apply_token_type_ids(types)  # a causal text with images that see themselves whole
    yield MaskInfo.from_attention_mask(table).apply_token_type_ids(types, zero_policy="none").apply_causal(3)
    yield segments.apply_token_type_ids(types, combine="replace")
    yield MaskInfo.from_cu_seqlens(jnp.asarray([0, 5, 2, 16]), max_q_len=S)


def test_mask_infos_stay_what_they_were_given_as():
    for info in infos():
        lazy = flash_attention(Q, K, V, mask_info=info)
        np.testing.assert_allclose(lazy, by_mask(info.attention_mask), atol=1e-5)
        assert info.shape == (B, S, S)
    jitted = jax.jit(lambda info: flash_attention(Q, K, V, mask_info=info))
    text = jitted.lower(MaskInfo.from_segments(IDS).apply_causal(jnp.asarray([1, 2]))).as_text()
    assert f"{S}x{S}" not in text
    keep = info.attention_mask
    np.testing.assert_array_equal(info.bias == 0, keep)
    assert info.materialize_attention_mask().rules == ()


def test_mask_infos_where_jax_promotes_nothing():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        for info in infos():
            kept = info.apply_kv_lengths(jnp.asarray([4, S]))
            lazy = flash_attention(Q, K, V, mask_info=kept)
            np.testing.assert_allclose(lazy, by_mask(kept.attention_mask), atol=1e-5)
            assert kept.q_segment_ids.shape == (B, S)


def test_lengths_where_integers_have_64_bits():
    """Positions and lengths meet in one type, also if JAX promotes nothing."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        lengths, ends = jnp.asarray([4, S]), jnp.asarray([0, 4, 4 + S])
        assert lengths.dtype == jnp.int64
        kept = by_mask((jnp.arange(S)[None] < lengths[:, None])[:, None, None])
        for out in (
            dot_product_attention(Q, K, V, key_value_seq_lengths=lengths),
            flash_attention(Q, K, V, mask_info=MaskInfo.from_segments(IDS * 0).apply_kv_lengths(lengths)),
        ):
            np.testing.assert_allclose(out, kept, atol=1e-5)
        both = dot_product_attention(Q, K, V, query_seq_lengths=lengths, key_value_seq_lengths=lengths)
        packed = flash_attention(Q, K, V, cum_seqlens_q=ends, cum_seqlens_k=ends)
        np.testing.assert_allclose(both, packed, atol=1e-5)
        bounds = jnp.asarray([0, 4, 0, S])
        by_bounds = flash_attention(Q, K, V, mask_info=MaskInfo.from_cu_seqlens(bounds, max_q_len=S))
        np.testing.assert_allclose(by_bounds, packed, atol=1e-5)


def left_alone():
    """MaskInfos for some queries and keys, and where these start in each batch."""
    whole = MaskInfo.from_segments(IDS).apply_causal(2)
    table = MaskInfo.from_random(B, S, sparsity=0.3, seed=1)
    lengths = jnp.asarray([9, 15])
    yield whole.apply_sliding_window((4, 1), mode="decode", index=jnp.asarray([7, 18])), (7, 18), (3, 13)
    yield table.apply_chunked(8).apply_sliding_window(np.int64(5), mode="prefill"), (0, 0), (14, 14)
    yield whole.apply_kv_lengths(lengths, q_len=4, end_index=lengths), (5, 11), (0, 0)
    yield table.apply_kv_lengths(lengths, q_len=1, end_index=lengths, sliding_window=6), (8, 14), (3, 9)


@pytest.mark.parametrize("case", range(4))
def test_mask_infos_of_some_queries_and_keys(case):
    """For these they keep what the whole keeps, and conditions that are added later count from their start."""
    part, q_starts, kv_starts = list(left_alone())[case]
    whole = [
        MaskInfo.from_segments(IDS).apply_causal(2).apply_sliding_window((4, 1)),
        MaskInfo.from_random(B, S, sparsity=0.3, seed=1).apply_chunked(8).apply_sliding_window(5),
        MaskInfo.from_segments(IDS).apply_causal(2).apply_kv_lengths(jnp.asarray([9, 15])),
        MaskInfo.from_random(B, S, sparsity=0.3, seed=1).apply_kv_lengths(jnp.asarray([9, 15])),
    ][case].attention_mask
    q_len, kv_len = part.q_len, part.kv_len
    rows, columns = (
        jnp.asarray(starts)[:, None] + jnp.arange(n) for starts, n in ((q_starts, q_len), (kv_starts, kv_len))
    )
    batch = jnp.arange(B)[:, None, None]
    expected = whole[batch, 0, rows[:, :, None], columns[:, None, :]][:, None]
    np.testing.assert_array_equal(part.attention_mask, expected)
    got = jax.jit(lambda info: flash_attention(Q[:, :q_len], K[:, :kv_len], V[:, :kv_len], mask_info=info))(part)
    np.testing.assert_allclose(
        got, flash_attention(Q[:, :q_len], K[:, :kv_len], V[:, :kv_len], attention_mask=expected), atol=1e-6
    )
    later = part.apply_causal().attention_mask
    np.testing.assert_array_equal(later, expected & (jnp.arange(kv_len) <= jnp.arange(q_len)[:, None]))


def test_token_types_leave_padding_and_other_segments_out():
    """Like ejkernel's function, which combines the mask and the segments."""
    types = jnp.asarray(np.random.default_rng(2).integers(0, 3, (B, S)))
    same = (types[:, :, None] == types[:, None])[:, None]
    of_ids = MaskInfo.from_segments(IDS)
    causal = of_ids.apply_causal()
    shown = causal.apply_token_type_ids(types).attention_mask
    np.testing.assert_array_equal(
        shown, (causal.attention_mask | (same & (types != 0)[:, None, :, None])) & of_ids.attention_mask
    )
    both_typed = (types != 0)[:, None, :, None] & (types != 0)[:, None, None]
    for combine, before in (("intersect", causal.attention_mask), ("replace", jnp.ones((B, 1, S, S), bool))):
        shown = causal.apply_token_type_ids(types, combine=combine, zero_policy="none")
        np.testing.assert_array_equal(shown.attention_mask, before & same & both_typed)
        np.testing.assert_array_equal(shown.q_segment_ids, jnp.where(types == 0, -1, types))
    shown = causal.apply_token_type_ids(types, combine="replace", zero_policy="none", update_segment_ids=False)
    np.testing.assert_array_equal(shown.attention_mask, same & of_ids.attention_mask)


def test_what_a_mask_info_tells():
    info = MaskInfo.from_segments(jnp.asarray([[0, 0, 1, 1, 1], [-1, 0, 0, 1, -1]]))
    assert bool(info.is_multi_sequence) and bool(info.is_self_attention())
    assert info.q_lens.tolist() == info.kv_lens.tolist() == [4, 4]
    assert info.get_or_compute_qkv_cu_seqlens(max_segments=3)[0].tolist() == [0, 4, 8, 8]
    assert info.cu_seqlens_kv.shape == (129,)
    assert info.q_position_ids.tolist() == [[0, 1, 0, 1, 2], [-1, 0, 1, 0, -1]]
    assert info.get_or_compute_positions()[1][1].tolist() == [2**31 - 1, 0, 1, 0, 2**31 - 1]
    assert info.q_attention_mask.tolist() == [[1] * 5, [0, 1, 1, 1, 0]]
    of_q, of_kv, pairs = info.get_qkv_masks(jnp.int32)
    assert of_q.dtype == of_kv.dtype == jnp.int32
    np.testing.assert_array_equal(pairs, info.attention_mask)
    assert info.create_bias(jnp.bfloat16).dtype == jnp.bfloat16
    as_numbers = info.to_dtype(jnp.float32)
    assert as_numbers._attention_mask.dtype == jnp.float32
    small = normal(2, 5, 2, 8)
    assert jnp.array_equal(
        flash_attention(small, small, small, mask_info=as_numbers), flash_attention(small, small, small, mask_info=info)
    )
    assert info.apply_causal().apply_chunked(2).baked_in_masks == {
        "causal": True, "sliding_window": False, "chunked": True, "token_type_ids": False,
    }  # fmt: skip

    table = jnp.ones((2, 1, 3, 4), bool).at[0, :, :, 1].set(False).at[1, :, 2].set(False)
    masked = MaskInfo.from_attention_mask(table)
    assert masked.q_segment_ids.tolist() == [[0, 0, 0], [0, 0, -1]]
    assert masked.kv_segment_ids.tolist() == [[0, -1, 0, 0], [0] * 4]
    assert masked.cu_seqlens_q.tolist() == [0, 3, 0, 2]
    assert not masked.is_multi_sequence and not masked.is_self_attention() and masked.q_lens is None
    assert masked.materialize_segment_ids()._q_segment_ids is not None
    assert masked.apply_causal().replace(attention_mask=table).rules == ()
    packed = MaskInfo.from_cu_seqlens(jnp.asarray([0, 5, 2, 16]), max_q_len=S)
    assert packed.cu_seqlens_q.tolist() == [0, 5, 2, 16]
    assert MaskInfo.create_chunked_attention_mask(2, 3, 4, dtype=jnp.int32).tolist() == [
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [0, 0, 1, 0],
    ]
    assert MaskInfo.dynamic_init(mask_info=info) is info
    assert MaskInfo.dynamic_init(inputs_embeds=jnp.ones((2, 3, 4))).attention_mask.all()
    assert MaskInfo.dynamic_init(attention_mask=jnp.asarray([[1, 0]])).q_segment_ids.tolist() == [[0, -1]]


def test_shardings_of_a_mask_info():
    mesh = jax.sharding.AbstractMesh((2, 1, 4, 2), ("dp", "fsdp", "tp", "sp"))
    info = MaskInfo.from_random(B, S).replace(q_segment_ids=IDS, kv_segment_ids=IDS[:, :18])
    shardings = info.get_shardings(mesh=mesh)
    assert shardings.attention_mask == P(("dp", "fsdp"), None, None, None)
    assert shardings.q_segment_ids == P(("dp", "fsdp"), None) and shardings.q_positions is None
    split = dataclasses.replace(info, batch_axis_name="dp").get_shardings(True, mesh=mesh)
    assert split.q_segment_ids == P("dp", None) and split.kv_segment_ids == P("dp", "sp")
    assert set(MaskInfo.get_empty_sharding()) == {None}
    with pytest.raises(ValueError, match=r'the mesh has no axis "fsdp", only \'dp\', \'tp\''):
        info.get_shardings(mesh=jax.sharding.AbstractMesh((2, 4), ("dp", "tp")))


def test_a_mask_info_as_text(capsys):
    info = MaskInfo.from_segments(jnp.asarray([[0, 0, 0, 0, 1, 1, 1, 1, -1, -1]])).apply_causal()
    text = info.visualize(block_size=2, charset="ascii", return_str=True)
    assert text.splitlines()[1:8] == [
        "         00000101  ", "         ==========", "     0 ||..        ||", "     0 ||##..      ||",
        "     1 ||    ..    ||", "     1 ||    ##..  ||", "   PAD ||          ||",
    ]  # fmt: skip
    assert info.visualize(block_size=1, max_rows=2, max_cols=2, show_segments=False) is None
    assert "||░░  ||" in capsys.readouterr().out
    with pytest.raises(ValueError, match="batch is 1; expected 0 to 0"):
        info.visualize(batch=1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda info: info.apply_sliding_window(3, mode="decode"), "mode is 'decode' and index None; the position"),
        (lambda info: info.apply_sliding_window(3, mode="middle"), "mode is 'middle'; expected None, "),
        (lambda info: info.apply_sliding_window((1, 2, 3)), "one integer or two, not negative"),
        (
            lambda info: info.apply_causal(jnp.arange(3)),
            r"offset is int32\[3\]; expected an integer, or int32 \[batch\]",
        ),
        (lambda info: info.apply_kv_lengths(jnp.arange(3)), r"expected int32 \[2\], a length for each batch"),
        (lambda info: info.apply_kv_lengths(jnp.arange(2), q_len=1), "expected q_len and end_index together"),
        (lambda info: MaskInfo.from_random(1, 2, sparsity=2), "sparsity is 2; expected a probability"),
        (lambda info: MaskInfo.dynamic_init(), "nothing came; expected mask_info"),
        (lambda info: info.visualize(charset="emoji"), "charset is 'emoji'"),
    ],
)
def test_what_a_mask_info_refuses(call, message):
    with pytest.raises(flashlift.FlashliftError, match=message):
        call(MaskInfo.from_segments(IDS))


@dataclasses.dataclass
class Theirs:
    """The fields of ejkernel's MaskInfo that flash_attention reads."""

    _attention_mask: object = None
    _q_segment_ids: object = None
    _kv_segment_ids: object = None

    def get_or_compute_segment_ids(self, per_head):
        return self._q_segment_ids, self._kv_segment_ids


def test_mask_info_of_ejkernel():
    table = jnp.asarray(np.random.default_rng(1).random((B, 1, S, S)) < 0.5)
    both = MaskInfo.from_segments(IDS).replace(attention_mask=table).attention_mask
    np.testing.assert_allclose(flash_attention(Q, K, V, mask_info=Theirs(table, IDS, IDS)), by_mask(both), atol=1e-6)
    np.testing.assert_allclose(flash_attention(Q, K, V, mask_info=Theirs(table)), by_mask(table), atol=1e-6)


SPECS = [P("dp", None, "tp")] * 3 + [P("dp", "tp"), P("tp"), None, None]


def test_the_call_of_easydel():
    """Seven positional operands, seven specs, a MaskInfo, a configuration."""
    mesh = jax.make_mesh((1, 1), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    bias, sinks = normal(1, H, S, S), normal(H, 1)
    given = (Q, K, V, bias, None, None, sinks)
    for info in (None, MaskInfo.from_segments(IDS).apply_causal(jnp.asarray([0, 1])), Theirs(None, IDS, IDS)):
        expected = flash_attention(*given, mask_info=info)
        got = flash_attention(
            *given, mask_info=info, logits_dtype=jnp.float32, cfg=FlashAttentionConfig(fwd_params={"q_blocksize": 64}),
            mesh=mesh, in_specs=SPECS, out_specs=P("dp", None, "tp"),
        )  # fmt: skip
        np.testing.assert_allclose(got, expected, atol=1e-6)
    dropped = flash_attention(
        Q, K, V, dropout_prob=0.5, dropout_seed=3, return_lse=True, mesh=mesh, in_specs=SPECS, out_specs=SPECS[0]
    )
    expected = flash_attention(Q, K, V, dropout_prob=0.5, dropout_seed=3, return_lse=True)
    for one, other in zip(dropped, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mask_info": IDS}, r"mask_info is int32\[2, 19\]; expected a MaskInfo"),
        ({"mask_info": MaskInfo}, "mask_info is .*; expected a MaskInfo"),
        ({"mask_info": MaskInfo.from_segments(IDS), "q_segment_ids": IDS}, "mask_info and q_segment_ids are given"),
        (
            {"mesh": jax.make_mesh((1,), ("dp",))},
            "in_specs, out_specs is missing; expected mesh, in_specs and out_specs",
        ),
        ({"mesh": "dp", "in_specs": SPECS, "out_specs": P("dp")}, "mesh is 'dp'; expected a jax.sharding.Mesh"),
        (
            {"mesh": jax.make_mesh((1,), ("dp",)), "in_specs": ["dp", *SPECS[1:]], "out_specs": P("dp")},
            "the spec of query is 'dp'; expected a jax.sharding.PartitionSpec",
        ),
        (
            {"mesh": jax.make_mesh((1,), ("dp",)), "in_specs": [P(*[None] * 5), *SPECS[1:]], "out_specs": P("dp")},
            "the spec of query is .*; expected at most 4 dimensions",
        ),
        ({"dtype": "zz"}, "dtype is 'zz'; expected float32"),
        ({"cfg": 3}, "cfg is 3; expected a FlashAttentionConfig"),
        ({"cfg": FlashAttentionConfig(platform="triton")}, 'platform is "triton"; expected'),
    ],
)
def test_what_is_refused(arguments, message):
    with pytest.raises(flashlift.FlashliftError, match=message):
        flash_attention(Q, K, V, **arguments)


THREE = jnp.asarray([1, 2, 3])
IDS_OF_THREE = jnp.zeros((3, S), jnp.int32)


@pytest.mark.parametrize(
    ("info", "message"),
    [
        (MaskInfo().apply_causal(THREE), r"mask_info's offset is int32\[3\]; expected \[2\], where one batch"),
        (MaskInfo().apply_sliding_window(4, offset=THREE), r"mask_info's offset is int32\[3\]"),
        (MaskInfo().apply_kv_lengths(THREE), r"mask_info's kv_lengths is int32\[3\]; expected \[2\]"),
        (MaskInfo().apply_token_type_ids(IDS_OF_THREE, combine="replace"), r"is int32\[3, 19\]; expected"),
        (
            MaskInfo.from_attention_mask(jnp.ones((B, 3, S, S), bool)).apply_token_type_ids(IDS),
            r"mask_info's attention_mask is bool\[2, 3, 19, 19\]; expected \[2, 4, 19, 19\]",
        ),
    ],
)
def test_conditions_of_another_call(info, message):
    mesh = jax.make_mesh((1, 1), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    for more in {}, {"mesh": mesh, "in_specs": SPECS, "out_specs": SPECS[0]}:
        with pytest.raises(flashlift.InvalidArgumentError, match=message):
            flash_attention(Q, K, V, mask_info=info, **more)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MaskInfo().apply_kv_lengths(jnp.asarray([1.5, 2.0])), r"kv_lengths is float32\[2\]; expected int32"),
        (
            lambda: MaskInfo().apply_kv_lengths(jnp.ones((2, 2), int)),
            r"kv_lengths is int32\[2, 2\]; expected int32 \[batch",
        ),
        (lambda: MaskInfo().apply_chunked(4, 1.5), "offset is 1.5; expected an integer"),
        (
            lambda: MaskInfo.from_cu_seqlens(np.asarray([5, 1]), max_q_len=8),
            r"cu_seqlens_q is \[5, 1\]; .*no end before",
        ),
        (lambda: MaskInfo.from_cu_seqlens(np.asarray([0, 9]), max_q_len=8), "expected starts and ends from 0 to 8"),
    ],
)
def test_conditions_that_are_none(make, message):
    with pytest.raises(flashlift.InvalidArgumentError, match=message):
        make()


def test_an_implementation_by_name():
    with pytest.raises(jax.errors.JaxRuntimeError, match="cpu_nonsense"):
        flash_attention(Q, K, V, cfg=FlashAttentionConfig(implementation="cpu_nonsense"))


def test_the_module():
    kernel = FlashAttention()
    assert kernel.op_id == "flash_attention"
    np.testing.assert_array_equal(
        kernel.run(Q, K, V, IDS >= 0, causal=True), flash_attention(Q, K, V, attention_mask=IDS >= 0, causal=True)
    )
    assert jnp.array_equal(kernel.get_impl(FlashAttentionConfig())(Q, K, V), flash_attention(Q, K, V))
    with pytest.raises(ValueError, match="no implementation"):
        kernel.get_impl(FlashAttentionConfig(platform="pallas"))
    for inv in (
        fj.Invocation("flash_attention", (Q, K, V), {}),
        fj.Invocation("flash_attention", (), {"query": Q, "key": K, "value": V}),
    ):
        assert kernel.candidate_cfgs(inv)[0].implementation.startswith("cpu_")
        assert kernel.heuristic_cfg(inv) == FlashAttentionConfig()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda _: fj.Executor()(FlashAttention, Q, K, V),
            r"kernel is .*expected a module, such as FlashAttention\(\)",
        ),
        (lambda _: fj.Executor()(flash_attention, Q, K, V), "kernel is <function"),
        (
            lambda _: FlashAttention().candidate_cfgs(fj.Invocation("flash_attention", (Q.astype(int), K, V), {})),
            "query is int32",
        ),
        (lambda _: fj.Tuner(iters=0), "iters is 0; expected an integer, at least 1"),
        (lambda _: fj.Tuner(warmup=-1), "warmup is -1"),
        (lambda folder: fj.PersistentCache("flash_attention", folder), "path is .*, a folder; expected a file"),
        (lambda _: fj.overlay_cache([1]).__enter__(), r"mapping is \[1\]; expected a dict"),
        (lambda _: FlashAttentionConfig.from_json("[1]"), r"the configuration is \[1\]; expected a dict"),
    ],
)
def test_what_the_module_refuses(call, message, tmp_path):
    with pytest.raises(flashlift.InvalidArgumentError, match=message):
        call(tmp_path)


def test_the_choice(tmp_path):
    events = []
    disk = fj.PersistentCache(tmp_path / "folder" / "configs.json")
    chain = fj.ConfigSelectorChain(persistent=disk, on_event=lambda event, **_: events.append(event))
    executor, kernel = fj.Executor(chain), FlashAttention()
    expected = flash_attention(Q, K, V, causal=True)
    run = lambda **more: np.testing.assert_allclose(executor(kernel, Q, K, V, causal=True, **more), expected, atol=1e-6)
    run()
    run()
    run(cfg=FlashAttentionConfig())
    key = chain.cache.keys()[0]
    with fj.overlay_cache({key: FlashAttentionConfig()}):
        run()
    chain.cache.clear()
    with fj.policy_override(chain, allow_heuristics=False), pytest.raises(RuntimeError, match="no configuration"):
        run()
    chain.tuner = fj.Tuner(warmup=1, iters=1)
    with fj.policy_override(chain, allow_autotune=True):
        run()
    assert chain.cache.get(*key) == disk.get(*key) != FlashAttentionConfig()
    chain.cache.clear()
    run()
    assert events == ["heuristics", "cache_hit", "override", "overlay_hit", "autotune", "persistent_hit"]
    for text in ("{", "[" * 100_000, "[]"):
        (tmp_path / "folder" / "configs.json").write_text(text)
        assert disk.get(*key) is None
    with pytest.raises(TypeError):
        fj.PersistentCache(tmp_path / "folder" / "configs.json", dumper=lambda _: object()).put(*key, None)
    disk.put(*key, FlashAttentionConfig(fwd_params={"q_blocksize": 32}))
    assert disk.get(*key).fwd_params.q_blocksize == 32
    assert sorted(os.listdir(tmp_path / "folder")) == ["configs.json", "configs.lock"]


def test_the_default_executor():
    executor = fj.create_default_executor()
    np.testing.assert_array_equal(
        executor(FlashAttention(), Q, K, V, softmax_scale=0.3), flash_attention(Q, K, V, softmax_scale=0.3)
    )
    np.testing.assert_array_equal(executor(FlashAttention(), query=Q, key=K, value=V), flash_attention(Q, K, V))
    compiled = executor.compile(FlashAttention(), Q, K, V, causal=True)
    np.testing.assert_allclose(compiled(Q, K, V), flash_attention(Q, K, V, causal=True), atol=1e-6)
    mesh = jax.make_mesh((1, 1), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    got = executor(
        FlashAttention(),
        Q,
        K,
        V,
        attention_mask=jnp.ones((B, H, S, S), bool),
        method="shard_map",
        mesh=mesh,
        in_specs=SPECS,
        out_specs=SPECS[0],
    )
    np.testing.assert_allclose(got, flash_attention(Q, K, V), atol=1e-6)


def test_configurations_as_ejkernel_writes_them(tmp_path, monkeypatch):
    named = FlashAttentionConfig("cpu", "any", fj.FwdParams(q_blocksize=64), {"num_warps": 4})
    assert (named.platform, named.fwd_params.q_blocksize, named.bwd_params.num_warps) == ("cpu", 64, 4)
    assert FlashAttentionConfig.from_json(named.to_json()) == FlashAttentionConfig.from_dict(named.to_dict()) == named
    for arguments, message in (((3,), "platform is 3; expected a name"), (("auto", "any", 64), "fwd_params is 64")):
        with pytest.raises(ValueError, match=message):
            FlashAttentionConfig(*arguments)
    monkeypatch.setenv("FLASHLIFT_CACHE_DIR", str(tmp_path))
    key = ("cpu", "flash_attention@v1", "0")
    fj.PersistentCache("flash_attention").put(*key, named)
    assert fj.PersistentCache("another name", tmp_path / "flash_attention.json").get(*key) == named
    assert fj.PersistentCache(str(tmp_path / "flash_attention.json")).get(*key) == named
    monkeypatch.setenv("FLASHLIFT_CACHE_DIR", "caches")
    with pytest.raises(ValueError, match="FLASHLIFT_CACHE_DIR is caches; expected an absolute path"):
        fj.PersistentCache("flash_attention")


def test_policies_of_tuners():
    measured = []

    class Kernel(FlashAttention):
        def run(self, query, *others, **more):
            measured.append(isinstance(query, jax.core.Tracer))
            return super().run(query, *others, **more)

    policy = fj.AutotunePolicy(allow_autotune=True, validate_backward=True)
    chain = fj.ConfigSelectorChain(fj.ConfigCache(), policy, fj.Tuner(0, 1))
    choose = lambda: (chain.cache.clear(), measured.clear(), fj.Executor(chain).choose_config(Kernel(), Q, K, V))
    choose()
    assert measured and all(measured), "the gradient is measured"
    choose()
    assert measured == [], "nothing is measured twice"
    chain.forbid_reautotune = False
    with fj.policy_override(chain, cache_miss_fallback="heuristics"):
        choose()
        assert measured == []
    with fj.forward_autotune_only():
        choose()
    assert measured and not any(measured)
    with pytest.raises(ValueError, match="cache_miss_fallback is 'measure'; expected"):
        fj.AutotunePolicy(cache_miss_fallback="measure")
    with pytest.raises(NotImplementedError, match="block_tables was given, but flash_attention has no pages"):
        flash_attention(Q, K, V, None, None, None, None, IDS)
