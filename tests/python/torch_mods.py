"""Mods for flex_attention as users write them: from PyTorch's own tests, attention-gym and Eagle3."""

import functools
import math

import torch
from torch.nn.attention.flex_attention import and_masks, noop_mask, or_masks

HEADS = 4


def _random(*shape, dtype=torch.float32, seed=3):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32).to(dtype)


def causal(b, h, q, kv):
    return q >= kv


def causal_score(score, b, h, q, kv):
    """Returns no score: a mask_mod passed as a score_mod."""
    return q >= kv


def branching(score, b, h, q, kv):
    return torch.cond(q >= kv, lambda one: one, lambda one: one - 1, (score,))


def window(size):
    return lambda b, h, q, kv: (q - kv).abs() <= size


def causal_window(size):
    def inside(b, h, q, kv):
        return q - kv <= size

    return and_masks(causal, inside)


def prefix_lm(prefix):
    return or_masks(lambda b, h, q, kv: kv < prefix, causal)


def documents(length, count):
    ids = torch.arange(length) * count // max(length, 1)
    return lambda b, h, q, kv: ids[q] == ids[kv]


def document_causal(length, count):
    """attention-gym's: a mask_mod of positions inside each document, from offsets."""
    ids = (torch.arange(length) * count // max(length, 1)).to(torch.int32)
    offsets = torch.tensor([int((ids < i).sum()) for i in range(count)])

    def inner(b, h, q, kv):
        return q >= kv

    def mask(b, h, q, kv):
        same = ids[q] == ids[kv]
        return same & inner(b, h, q - offsets[ids[q]], kv - offsets[ids[kv]])

    return mask


def batched_lengths(lengths):
    lengths = torch.tensor(lengths)

    def mask(b, h, q, kv):
        return (q < lengths[b]) & (kv < lengths[b])

    return mask


def natten(width, kernel):
    def mask(b, h, q, kv):
        qx, qy = q // width, q % width
        kx, ky = kv // width, kv % width
        cx = qx.clamp(kernel // 2, width - 1 - kernel // 2)
        cy = qy.clamp(kernel // 2, width - 1 - kernel // 2)
        return ((cx - kx).abs() <= kernel // 2) & ((cy - ky).abs() <= kernel // 2)

    return mask


def dilated(width, dilation):
    def mask(b, h, q, kv):
        distance = q - kv
        return (distance >= 0) & (distance < width * dilation) & (distance % dilation == 0)

    return mask


def transfusion(starts, ends):
    def in_image(b, h, q, kv):
        result = q >= kv
        for start, end in zip(starts, ends, strict=True):
            result = result | ((q >= start) & (q < end) & (kv >= start) & (kv < end))
        return result

    return in_image


def head_windows(b, h, q, kv):
    return (q >= kv) & (q - kv < (h + 1) * 16)


def eagle3(seq_lengths, q_len):
    """Speculative-decoding training: causal over the first q_len keys, then one diagonal for each further draft step;
    KV is a multiple of Q."""
    seq_lengths = torch.tensor(seq_lengths)

    def causal_part(b, h, q, kv):
        in_length = (kv < seq_lengths[b]) & (q < seq_lengths[b])
        return (q >= kv) & in_length

    def suffix_part(b, h, q, kv):
        suffix = kv >= q_len
        in_length = kv % q_len < seq_lengths[b]
        diagonal = (kv - q) % q_len == 0
        return suffix & in_length & diagonal

    return or_masks(causal_part, suffix_part)


def bits(b, h, q, kv):
    return ((q ^ kv) & 3) != 1


def shifted_bits(b, h, q, kv):
    return (((q >> 2) | (kv << 1)) & (1 << h)) == 0


def hashed(b, h, q, kv):
    return ((q * 7919 + kv * 104729 + h) % 11) < 7


def table_mask(b, h, q, kv, *, table):
    return table[b, q // 16, kv // 16]


def relative_bias(score, b, h, q, kv):
    return score + (q - kv)


def relative_scaled(score, b, h, q, kv):
    return score + (q - kv) * 0.01


def times_two(score, b, h, q, kv):
    return score * 2


def squared(score, b, h, q, kv):
    return score * score


def causal_where(score, b, h, q, kv):
    return torch.where(q >= kv, score, float("-inf"))


def causal_relative(score, b, h, q, kv):
    return torch.where(q >= kv, score + (q - kv) * 0.02, -math.inf)


def alibi(score, b, h, q, kv):
    return score - torch.exp2(-((h + 1) * 8.0 / HEADS)) * (q - kv).abs()


def alibi_table(dtype=torch.float32):
    slopes = torch.exp2(-torch.arange(1, HEADS + 1) * 8.0 / HEADS).to(dtype)
    return lambda score, b, h, q, kv: score + slopes[h] * (kv - q)


def softcap(cap):
    return lambda score, b, h, q, kv: cap * torch.tanh(score / cap)


def softcap_polynomial(score, b, h, q, kv):
    """tanh as a rational function, as approximations do it."""
    x = (score / 30).clamp(-3, 3)
    return 30 * x * (27 + x * x) / (27 + 9 * x * x)


def full_bias(q_len, kv_len, dtype=torch.float32):
    bias = _random(HEADS, q_len, kv_len, dtype=dtype)
    return lambda score, b, h, q, kv: score + bias[h, q, kv]


def batched_bias(batch, q_len, kv_len):
    bias = _random(batch, HEADS, q_len, kv_len)
    return lambda score, b, h, q, kv: score + bias[b, h, q, kv]


def nested_indexing(q_len, kv_len):
    bias = _random(HEADS, q_len, kv_len)
    return lambda score, b, h, q, kv: score + bias[h][q][kv]


def learned_table(size):
    table = _random(HEADS, 2 * size - 1)
    return lambda score, b, h, q, kv: score + table[h, (q - kv).clamp(1 - size, size - 1) + size - 1]


def negative_index(length):
    """An index below zero counts from the end."""
    table = _random(2 * length)
    return lambda score, b, h, q, kv: score + table[q - kv]


def t5_buckets(score, b, h, q, kv, table=_random(HEADS, 32)):
    distance = (q - kv).abs()
    large = 8 + (torch.log(distance.clamp(min=1).float() / 8) / math.log(16) * 8).to(torch.int64)
    bucket = torch.where(distance < 8, distance, large.clamp(max=15))
    return score + table[h, bucket + torch.where(kv > q, 16, 0)]


def head_bias(score, b, h, q, kv, *, bias):
    return score + bias[h]


def head_specific(score, b, h, q, kv):
    return torch.where(h % 2 == 0, score * 1.5, score + 0.1 * (kv - q))


def scaled_by_learned(dtype):
    scale = torch.tensor(0.7, dtype=dtype)
    offsets = {"a": [_random(HEADS, dtype=dtype), 2.0]}

    def inner(score, h):
        return score * scale + offsets["a"][0][h] * offsets["a"][1]

    return lambda score, b, h, q, kv: inner(score, h)


def derived_table(length):
    """Operations only on captured tensors."""
    table = _random(length, HEADS)
    return lambda score, b, h, q, kv: score + (table.t() * 2).softmax(-1)[h, kv]


def row_operations(length):
    """Operations on a row selected by a traced index."""
    table = _random(HEADS, length, 3)
    return lambda score, b, h, q, kv: score + (table[h, q] * table[h, kv]).sum(-1)


def smooth(score, b, h, q, kv):
    return torch.sigmoid(score) + torch.nn.functional.gelu(score) - torch.log1p(score.abs()) + torch.sin(kv * 0.1)


def in_half(score, b, h, q, kv):
    return (score.to(torch.float16) * 1.25).to(torch.float32)


def integer_arithmetic(score, b, h, q, kv):
    return score + ((q * 3 - kv) // 7 % 5).float() / 4 - torch.remainder(kv - q, 3) * 0.1


def in_place(score, b, h, q, kv):
    score = score * 1.0
    score += h
    score *= 0.5
    return score.masked_fill(kv > q + 20, -1e4)


def searched(count, length):
    starts = torch.arange(count) * (length // count)
    return lambda b, h, q, kv: torch.searchsorted(starts, q, right=True) == torch.searchsorted(starts, kv, right=True)


def searched_among_many(count):
    """More values than a program may compare one by one."""
    starts = torch.sort(torch.randint(0, 200, (count,), generator=torch.Generator().manual_seed(1))).values

    def score_mod(score, b, h, q, kv):
        distance = torch.bucketize(q - kv, starts) - torch.searchsorted(starts.int(), kv, right=True, out_int32=True)
        return score + distance / count

    return score_mod


def integer_powers(score, b, h, q, kv):
    score = score + 2 ** (kv % 40) % 97 / 97 + (q % 4) ** (kv % 9) % 97 / 97 + (q % 5 - 2) ** 7 / 128
    units = 2 * (q % 2) - 1
    return torch.where(q - kv < 2 ** (h + 3), score, score + units ** (kv - 20) - (h + 1) ** (kv.clamp(max=9) - 9))


def extremes(score, b, h, q, kv):
    """Extremes of booleans, extremes with NaN, and signs of numbers."""
    either, both = torch.maximum(q > kv, kv < 3), torch.minimum(q > 30, kv > 30)
    unknown = torch.where(q > kv, math.nan, 1.0)
    score = score + torch.fmax(unknown, torch.tensor(0.5)) - torch.fmin(torch.tensor(2), unknown) / 2
    return torch.where(either & ~both, score, torch.copysign(score, -1.0)) + torch.copysign(q - kv, -2) / 16


def parts(length):
    """Operations of several results, on captured tensors and on a row of one."""
    table, rows = _random(2 * length), _random(length, 4)

    def score_mod(score, b, h, q, kv):
        near, far = table.chunk(2)
        score = score + near[q] * rows.unbind(1)[1][kv] + far.sort().values[kv] + rows.max(0).values[h % 4]
        return score * rows[kv].max(0).values + rows[q].min(dim=0)[1]

    return score_mod


def detached(score, b, h, q, kv):
    """Rounds in the forward pass, but not in the backward pass."""
    with torch.no_grad():
        factor = 1 + 0.1 * torch.sin(score)
    return score + (torch.round(score * 8) / 8 - score).detach() * factor


def rows_of_tables(length):
    """A small network on a row selected by indices."""
    rows, weight, bias = _random(length, 6), _random(HEADS, 6), _random(HEADS)

    def score_mod(score, b, h, q, kv):
        x = torch.nn.functional.linear(rows[q] - rows[kv], weight, bias).relu()[h]
        first, second = rows[q].chunk(2)
        mixed = torch.cat([first.flip(0), second * 0.5, torch.stack([score, x])])
        one_hot = (torch.nn.functional.one_hot(q.long() % 3, 3) * rows[kv][:3]).sum()
        return score + 0.1 * x + 0.1 * mixed.std() + torch.layer_norm(rows[q], (6,))[2] + one_hot

    return score_mod


def angles(length):
    points = _random(length, 2)

    def score_mod(score, b, h, q, kv):
        x, y = points[kv] - points[q] + 0.01
        return score + torch.atan2(y, x) + torch.asinh(score) - torch.atan(x * 3) + 0.5 * torch.acos(torch.tanh(y))

    return score_mod


class Module(torch.nn.Module):
    def __init__(self, length):
        super().__init__()
        self.bias = torch.nn.Parameter(_random(HEADS, length))
        self.register_buffer("slopes", torch.linspace(0.1, 0.4, HEADS))
        self.factor = 0.5

    @property
    def half(self):
        return self.factor / 2

    def score_mod(self, score, b, h, q, kv):
        return score + self.bias[h, kv] * self.half - self._distance(h, q, kv)

    def _distance(self, h, q, kv):
        return self.slopes[h] * (q - kv).abs()


def cases(batch, q_len, kv_len):
    """name: (score_mod, mask_mod) for these sizes."""
    longest = max(q_len, kv_len)
    blocks = _random(batch, longest // 16 + 1, longest // 16 + 1) > -0.5
    lengths = [max(1, kv_len - 9 * i) for i in range(batch)]
    return {
        "noop": (None, None),
        "noop_mask": (None, noop_mask),
        "causal": (None, causal),
        "window": (None, window(20)),
        "causal_window": (None, causal_window(33)),
        "prefix_lm": (None, prefix_lm(25)),
        "documents": (None, documents(longest, 5)),
        "document_causal": (None, document_causal(longest, 4)),
        "batched_lengths": (None, batched_lengths(lengths)),
        "natten": (None, natten(12, 5)),
        "dilated": (None, dilated(7, 4)),
        "transfusion": (None, transfusion([3, 40], [20, 60])),
        "head_windows": (None, head_windows),
        "eagle3": (None, eagle3(lengths, q_len)),
        "bits": (None, bits),
        "shifted_bits": (None, shifted_bits),
        "hashed": (None, hashed),
        "table_mask": (None, functools.partial(table_mask, table=blocks)),
        "searched": (None, searched(4, longest)),
        "nothing_kept": (None, lambda b, h, q, kv: (q > 5) & (kv < 0)),
        "relative_bias": (relative_bias, None),
        "relative_scaled": (relative_scaled, None),
        "times_two": (times_two, None),
        "squared": (squared, None),
        "causal_where": (causal_where, None),
        "causal_relative": (causal_relative, None),
        "alibi": (alibi, None),
        "alibi_causal": (alibi_table(), causal),
        "alibi_bf16": (alibi_table(torch.bfloat16), causal),
        "softcap": (softcap(20.0), None),
        "softcap_causal": (softcap(5), causal),
        "softcap_polynomial": (softcap_polynomial, causal),
        "full_bias": (full_bias(q_len, kv_len), None),
        "full_bias_bf16": (full_bias(q_len, kv_len, torch.bfloat16), None),
        "batched_bias": (batched_bias(batch, q_len, kv_len), causal),
        "nested_indexing": (nested_indexing(q_len, kv_len), None),
        "learned_table": (learned_table(32), None),
        "negative_index": (negative_index(longest), None),
        "t5_buckets": (t5_buckets, None),
        "head_bias": (functools.partial(head_bias, bias=_random(HEADS)), None),
        "head_specific": (head_specific, causal),
        "captures_nested": (scaled_by_learned(torch.float32), window(40)),
        "captures_nested_f16": (scaled_by_learned(torch.float16), None),
        "derived_table": (derived_table(longest), None),
        "row_operations": (row_operations(longest), causal),
        "smooth": (smooth, None),
        "in_half": (in_half, None),
        "integer_arithmetic": (integer_arithmetic, None),
        "in_place": (in_place, None),
        "detached": (detached, None),
        "searched_among_many": (searched_among_many(600), None),
        "parts": (parts(longest), causal),
        "integer_powers": (integer_powers, None),
        "extremes": (extremes, None),
        "rows_of_tables": (rows_of_tables(longest), causal),
        "angles": (angles(longest), None),
        "module": (Module(longest).score_mod, causal),
    }
