"""Tiny models of transformers' own, made from configurations: with flashlift's attention they are what they are with sdpa."""

import pytest
import torch
from flashlift.torch import huggingface

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
}
REFERENCE = {"gemma2": "eager"}  # sdpa has no soft cap


def model(name, implementation):
    torch.manual_seed(0)
    config = CONFIGS[name]()
    config._attn_implementation = implementation
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation)


@pytest.mark.parametrize("name", CONFIGS)
def test_training_and_generating(name):
    huggingface.register()
    ours, theirs = model(name, "lifted"), model(name, REFERENCE.get(name, "sdpa"))
    theirs.load_state_dict(ours.state_dict())
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
