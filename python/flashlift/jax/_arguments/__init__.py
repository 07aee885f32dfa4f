"""Checks of flash_attention's arguments.

Each gives what the call needs, or says what was expected, what came and what to do.
"""

from flashlift.jax._arguments.captures import captured_tensors
from flashlift.jax._arguments.operands import check_dtype, check_operands, check_platform, check_precision, check_sinks
from flashlift.jax._arguments.planes import as_bias, as_flax_mask, bias_plane, mask_plane
from flashlift.jax._arguments.seeds import seed_words
from flashlift.jax._arguments.sequences import (
    keep_padding_apart,
    padded_ids,
    segment_pair,
    sequence_ends,
    sequence_lengths,
)
from flashlift.jax._arguments.values import as_array, check_flag, described, short
from flashlift.jax._arguments.words import (
    band_words,
    cap_program,
    dropout_rate,
    empty_rows_word,
    logits_word,
    scale_word,
)

__all__ = [
    "as_array",
    "as_bias",
    "as_flax_mask",
    "band_words",
    "bias_plane",
    "cap_program",
    "captured_tensors",
    "check_dtype",
    "check_flag",
    "check_operands",
    "check_platform",
    "check_precision",
    "check_sinks",
    "described",
    "dropout_rate",
    "empty_rows_word",
    "keep_padding_apart",
    "logits_word",
    "mask_plane",
    "padded_ids",
    "scale_word",
    "seed_words",
    "segment_pair",
    "sequence_ends",
    "sequence_lengths",
    "short",
]
