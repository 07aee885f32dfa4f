"""ejkernel's surface: its function's whole signature, MaskInfo, module, executor, configurations and caches."""

import dataclasses
import os

import flashlift
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flashlift import jax as fj
from flashlift.jax import FlashAttention, FlashAttentionConfig, MaskInfo, flash_attention
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


@dataclasses.dataclass
class Theirs:
    """What flash_attention reads of ejkernel's MaskInfo."""

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
        ({"mask_info": MaskInfo.from_segments(IDS), "q_segment_ids": IDS}, "mask_info and q_segment_ids came"),
        (
            {"mesh": jax.make_mesh((1,), ("dp",))},
            "in_specs, out_specs is missing; expected mesh, in_specs and out_specs",
        ),
        ({"cfg": 3}, "cfg is 3; expected a FlashAttentionConfig"),
        ({"cfg": FlashAttentionConfig(platform="triton")}, 'platform is "triton"; expected'),
    ],
)
def test_what_is_refused(arguments, message):
    with pytest.raises(flashlift.FlashliftError, match=message):
        flash_attention(Q, K, V, **arguments)


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
