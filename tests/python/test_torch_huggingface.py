"""Tiny models of transformers, created from configurations: with Flashlift's attention, their results are the same as
with sdpa.
"""

import copy
import sys

import pytest
import torch
from flashlift.torch import flex_attention, huggingface

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "mistral": lambda: transformers.MistralConfig(**SIZES, sliding_window=5),
    "gemma2": lambda: transformers.Gemma2Config(**SIZES, sliding_window=6, query_pre_attn_scalar=8),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=6, max_window_layers=1),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **SIZES, sliding_window=6, num_local_experts=2, num_experts_per_tok=1, rope_scaling=None
    ),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=61,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=64,
        scale_attn_by_inverse_layer_idx=True,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
    ),
}
REFERENCE = {"gemma2": "eager", "gpt_oss": "eager"}  # sdpa has no soft cap and no sinks


def model(name, implementation):
    torch.manual_seed(0)
    config = CONFIGS[name]()
    config._attn_implementation = implementation
    made = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation)
    for parameter_name, one in made.named_parameters():
        if "sinks" in parameter_name:
            torch.nn.init.normal_(one)
    return made


def pair(name):
    """The same model with our attention, and with a reference."""
    huggingface.register()
    ours, theirs = model(name, "lifted").eval(), model(name, REFERENCE.get(name, "sdpa")).eval()
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def some_tokens(batch=3, length=14):
    return torch.randint(3, 61, (batch, length), generator=torch.Generator().manual_seed(1))


def padded(tokens, side="left"):
    padding = torch.ones_like(tokens)
    if side == "left":
        padding[1, :4], padding[2, :1] = 0, 0
    elif side == "right":
        padding[1, -4:] = 0
    return padding


@pytest.fixture
def maybe_compiled(request):
    torch._dynamo.reset()
    if not request.param:
        return lambda one: one
    return lambda one: torch.compile(one, fullgraph=True, backend="aot_eager")


def with_models(*names):
    """Graphs take long to compile, so only some models are tested with them."""
    cases = [(name, False) for name in names] + [
        (name, True) for name in names if name in ("llama", "gemma2", "gpt_oss")
    ]
    ids = [f"{name}-compiled" if is_compiled else name for name, is_compiled in cases]
    return pytest.mark.parametrize("name, maybe_compiled", cases, indirect=["maybe_compiled"], ids=ids)


@with_models("llama", "gemma2", "gpt_oss", "gpt2")
@torch.no_grad()
def test_padding(name, maybe_compiled):
    ours, theirs = pair(name)
    run = maybe_compiled(ours)
    tokens = some_tokens()
    for side in ("left", "right", "none"):
        padding = padded(tokens, side)
        given = {"input_ids": tokens, "attention_mask": padding, "use_cache": False}
        out, expected = run(**given).logits, theirs(**given).logits
        torch.testing.assert_close(
            out[padding.bool()],
            expected[padding.bool()],
            atol=1e-4,
            rtol=1e-4,
            msg=lambda text, side=side: f"{side}: {text}",
        )


@with_models("llama", "mistral", "gpt_oss")
@torch.no_grad()
def test_packed_sequences_and_masks_of_numbers(name, maybe_compiled):
    ours, theirs = pair(name)
    run = maybe_compiled(ours)
    tokens = some_tokens(2)
    positions = torch.cat([torch.arange(6), torch.arange(8)])[None].expand(2, -1)
    kept = torch.ones(2, 1, 14, 14, dtype=torch.bool).tril()
    kept[:, :, 5:, 2] = False
    for given in (
        {"position_ids": positions},
        {"attention_mask": torch.where(kept, 0.0, torch.finfo(torch.float32).min)},
    ):
        given |= {"input_ids": tokens, "use_cache": False}
        torch.testing.assert_close(run(**given).logits, theirs(**given).logits, atol=1e-4, rtol=1e-4)


@with_models("llama", "gemma2")
@torch.no_grad()
def test_packed_sequences_as_flash_attention_gets_them(name, maybe_compiled):
    """With a cache, as models create by default, transformers' masks do not separate the sequences."""
    ours, theirs = pair(name)
    tokens = some_tokens(1)
    ends = torch.tensor([0, 6, 14], dtype=torch.int32)
    packed = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": 8, "max_length_k": 8}
    positions = torch.cat([torch.arange(6), torch.arange(8)])[None]
    given = {"input_ids": tokens, "position_ids": positions, **packed}
    # Compiled graphs take no cache that the model creates (see huggingface.py).
    out = maybe_compiled(ours)(**given, use_cache=maybe_compiled(ours) is ours).logits
    expected = torch.cat([theirs(one).logits for one in (tokens[:, :6], tokens[:, 6:])], 1)
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "config, model",
    [
        (lambda: transformers.BloomConfig(vocab_size=9, hidden_size=16, n_layer=1, n_head=2), "BloomForCausalLM"),
        (lambda: transformers.MptConfig(vocab_size=9, d_model=16, n_layers=1, n_heads=2), "MptForCausalLM"),
        (
            lambda: transformers.XGLMConfig(vocab_size=9, d_model=16, ffn_dim=16, num_layers=1, attention_heads=2),
            "XGLMForCausalLM",
        ),
    ],
    ids=["adds", "converts", "reads_sizes"],
)
def test_a_model_that_computes_with_masks_itself(config, model):
    """It has no AttentionInterface, and would use the implementation for its masks only."""
    huggingface.register()
    made = getattr(transformers, model)._from_config(config(), attn_implementation="lifted")
    with pytest.raises((TypeError, AttributeError), match='masks itself.*expected attn_implementation="eager"'):
        made(torch.ones(1, 5, dtype=torch.int64))


def test_a_mask_is_no_tensor():
    mask = huggingface.attention_mask(batch_size=1, q_length=5, kv_length=5)
    for use in (
        lambda: mask[:, :, :, :3],
        lambda: 1 - mask,
        lambda: ~mask,
        lambda: mask.to(torch.bool),
        lambda: mask.dtype,
        lambda: torch.cat([mask, mask], dim=2),
        lambda: torch.where(mask, 0.0, 1.0),
    ):
        with pytest.raises((TypeError, AttributeError), match="here a mask is a function"):
            use()
    assert not hasattr(mask, "size")
    assert copy.deepcopy(mask).shape == mask.shape
    assert "mask_mod" in str(mask)


def test_masks_of_older_versions_of_transformers():
    """They pass the positions of the queries in place of a length and an offset."""
    padding = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]])
    given = {"batch_size": 2, "kv_length": 8, "attention_mask": padding}
    by_length = huggingface.attention_mask(**given, q_length=3, q_offset=3)
    by_position = huggingface.attention_mask(**given, cache_position=torch.arange(3, 6))
    assert by_position.shape == by_length.shape == (2, 1, 3, 8)
    q, k = torch.randn(2, 2, 3, 8), torch.randn(2, 2, 8, 8)
    kept = torch.ones(3, 8, dtype=torch.bool).tril(3) & torch.nn.functional.pad(padding, (0, 2)).bool()[:, None, None]
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, k, kept)
    for mask in (by_position, by_length):
        torch.testing.assert_close(flex_attention(q, k, k, mask_mod=mask.mask_mod), expected, atol=1e-5, rtol=1e-4)


def test_a_version_of_transformers_without_masks_that_are_functions(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers.masking_utils", None)
    with pytest.raises(ImportError, match=r"transformers \d+.* its masks itself; expected version 4.53 or later"):
        huggingface.register()


def test_a_mask_over_the_keys_of_two_layers():
    padding = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    own = huggingface.attention_mask(batch_size=2, q_length=5, kv_length=5, attention_mask=padding)
    cross = huggingface.attention_mask(
        batch_size=2,
        q_length=5,
        kv_length=3,
        mask_function=lambda b, h, q, kv: b >= 0,
        attention_mask=torch.tensor([[1, 1, 0], [1, 0, 0]]),
    )
    both = torch.cat([own, cross], dim=-1)
    assert both.shape == (2, 1, 5, 8)
    kept = torch.ones(5, 5, dtype=torch.bool).tril() & padding.bool()[:, None, None]
    kept_of_cross = torch.tensor([[True, True, False], [True, False, False]])[:, None, None].expand(-1, -1, 5, -1)
    q, k = torch.randn(2, 2, 5, 8), torch.randn(2, 2, 8, 8)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, k, torch.cat([kept, kept_of_cross], -1))
    out = flex_attention(q, k, k, mask_mod=both.mask_mod)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["sinks", "indices", "block_indices"])
def test_a_model_that_asks_for_other_attention(name):
    q = torch.randn(1, 2, 5, 8)
    with pytest.raises(NotImplementedError, match=f'Linear passes {name}=.*expected attn_implementation="eager"'):
        huggingface.attention_forward(torch.nn.Linear(1, 1), q, q, q, None, **{name: torch.zeros(1)})


@torch.no_grad()
def test_cross_attention_without_a_mask():
    """Its module does not say whether it is causal."""
    huggingface.register()
    config = transformers.models.mllama.configuration_mllama.MllamaTextConfig(
        **{name: size for name, size in SIZES.items() if name != "head_dim"}, cross_attention_layers=[1], pad_token_id=0
    )
    results = []
    for implementation in ("lifted", "eager"):
        torch.manual_seed(0)
        made = transformers.MllamaForCausalLM._from_config(config, attn_implementation=implementation).eval()
        torch.nn.init.ones_(made.model.layers[1].cross_attn_attn_gate)
        states = torch.randn(3, 5, 32, generator=torch.Generator().manual_seed(1))
        results.append(made(input_ids=some_tokens(), cross_attention_states=states).logits)
    torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)


def test_a_model_that_leaves_out_masks():
    if not hasattr(transformers, "DogeConfig"):
        pytest.skip("this version of transformers has no Doge")
    huggingface.register()
    made = transformers.DogeForCausalLM._from_config(transformers.DogeConfig(**SIZES), attn_implementation="lifted")
    with pytest.raises(
        NotImplementedError, match='DogeAttention leaves out masks.*expected attn_implementation="eager"'
    ):
        made(some_tokens())


def test_weights_are_not_stored():
    q, k, v = (torch.randn(1, 2, 5, 8) for _ in range(3))
    with pytest.warns(UserWarning, match="output_attentions=True gives no weights"):
        huggingface.attention_forward(torch.nn.Identity(), q, k, v, None, output_attentions=True)


@pytest.mark.parametrize("pads", [False, True])
@with_models("llama", "gemma2", "gpt_oss", "gpt2")
@torch.no_grad()
def test_static_caches(name, pads, maybe_compiled):
    """They are longer than their content, and count it in place."""
    ours, theirs = pair(name)
    tokens = some_tokens()
    results = []
    for one in (ours, theirs):
        cache = transformers.StaticCache(config=one.config, max_cache_len=24)
        run = maybe_compiled(one) if one is ours else one
        padding = padded(tokens)
        logits = []
        for step in range(-1, 6):
            inputs = tokens if step < 0 else tokens[:, step : step + 1]
            if step >= 0:
                padding = torch.cat([padding, padding.new_ones(3, 1)], 1)
            given = {"attention_mask": padding} if pads else {}
            logits.append(run(input_ids=inputs, past_key_values=cache, **given).logits[:, -1:])
        results.append(torch.cat(logits, 1))
    torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)


@with_models("llama", "gemma2", "gpt_oss", "gpt2")
def test_generating_into_a_static_cache(name, maybe_compiled):
    ours, theirs = pair(name)
    tokens = some_tokens()
    given = {"input_ids": tokens, "attention_mask": padded(tokens), "max_new_tokens": 6, "do_sample": False}
    given |= {"pad_token_id": 0, "cache_implementation": "static", "disable_compile": True}
    ours.forward = maybe_compiled(ours.forward)
    assert torch.equal(ours.generate(**given), theirs.generate(**given))


@with_models("llama", "gemma2", "gpt_oss")
def test_gradient_checkpointing(name, maybe_compiled):
    tokens = some_tokens()
    padding = padded(tokens, "right")
    labels = tokens.masked_fill(padding == 0, -100)
    gradients = []
    ours, theirs = pair(name)
    for one in (ours, theirs):
        one.train()
        one.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        run = maybe_compiled(one) if one is ours else one
        run(input_ids=tokens, attention_mask=padding, labels=labels, use_cache=False).loss.backward()
        gradients.append({name: one.grad for name, one in one.named_parameters()})
    torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", CONFIGS)
def test_training_and_generating(name):
    ours, theirs = pair(name)
    tokens = torch.randint(0, 61, (3, 14), generator=torch.Generator().manual_seed(1))
    padding = torch.ones_like(tokens)
    padding[1, :4] = 0
    labels = tokens.masked_fill(padding == 0, -100)
    labels[1, 4] = -100  # predicted from padding, where implementations differ
    losses = []
    for one in (ours, theirs):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
        one.train()
        history = []
        for _ in range(3):
            loss = one(input_ids=tokens, attention_mask=padding, labels=labels).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            history.append(loss.detach())
        losses.append(torch.stack(history))
        one.eval()
    torch.testing.assert_close(losses[0], losses[1], atol=1e-5, rtol=1e-5)
    assert losses[0][-1] < losses[0][0]
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    given = {"input_ids": tokens, "attention_mask": padding, "max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(ours.generate(**given), theirs.generate(**given))
