"""A small GPT trained on text with unfused maths, FlexAttention and Flashlift: the loss of each step, and its time.

    python benchmarks/gpu/loss_curve.py [FILE ...] [--steps N] [--length N] [--batch N] [--json FILE] [--plot FILE.svg]

Letters are bytes; the text is that of the files (this repository's documents), and a document is a section of one:
queries see their own alone. Scores are capped. All begin with the same weights and see the same text. Prints the mean
difference to the losses of unfused maths over the last steps, beside what these change by from step to step; the exit
code is 1 where it is larger than a tenth of that.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import flashlift.torch
import torch
import torch.nn as nn
import torch.nn.functional as F
from forward import first_result
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from training import Block

HEADS, DEPTH, LAYERS = 8, 64, 4
CAP = 30.0
WARM_UP = 20  # steps of rising rates, which are not timed


def read_text(files):
    """The bytes of the text, and the section number of each."""
    text = b"".join(b"\n# " + Path(one).read_bytes() for one in files)
    letters = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    begins = (letters[1:] == ord("#")) & (letters[:-1] == ord("\n"))
    return letters, F.pad(begins, (1, 0)).cumsum(0).int()


def softcap(score, b, h, q, kv):
    return CAP * torch.tanh(score / CAP)


class Gpt(nn.Module):
    def __init__(self, length):
        super().__init__()
        width = HEADS * DEPTH
        self.letters, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(HEADS, DEPTH) for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, letters, attend):
        x = self.letters(letters) + self.places.weight
        for block in self.blocks:
            x = block(x, attend)
        return self.head(self.norm(x))


def contenders(sections):
    """For each contender: the function that makes a step's mask, and the attention that uses it."""
    length = sections.shape[1]

    def mask_mod(b, h, q, kv):
        return (q >= kv) & (sections[b, q] == sections[b, kv])

    def dense_mask():
        return (sections[:, None, :, None] == sections[:, None, None, :]).tril()

    def unfused(q, k, v, mask):
        scores = q.float() @ k.float().transpose(2, 3) * DEPTH**-0.5
        scores = softcap(scores, 0, 0, 0, 0).masked_fill(~mask, float("-inf"))
        return (torch.softmax(scores, -1) @ v.float()).to(q.dtype)

    block_mask = torch.compile(create_block_mask)
    return {
        "unfused maths": (dense_mask, unfused),
        "FlexAttention": (
            lambda: block_mask(mask_mod, len(sections), None, length, length, device=sections.device),
            lambda q, k, v, mask: flex_attention(q, k, v, score_mod=softcap, block_mask=mask),
        ),
        "Flashlift": (
            lambda: None,
            lambda q, k, v, mask: flashlift.torch.flex_attention(q, k, v, score_mod=softcap, mask_mod=mask_mod),
        ),
    }


def train(name, make_mask, attend, options, text, batches, sections):
    torch.manual_seed(1)
    torch._dynamo.reset()
    device = sections.device
    model = Gpt(options.length).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)
    letters = torch.empty(options.batch, options.length + 1, dtype=torch.long, device=device)

    def compute_loss(letters, mask):
        with torch.autocast(device.type, torch.bfloat16):
            logits = model(letters[:, :-1], lambda q, k, v: attend(q, k, v, mask))
        return F.cross_entropy(logits.float().flatten(0, 1), letters[:, 1:].flatten())

    compiled = torch.compile(compute_loss, fullgraph=True)
    losses, times, begin = [], [], time.perf_counter()
    for step in range(options.steps):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1, (step + 1) / WARM_UP)
        letters.copy_(text[0][batches[step]])
        sections.copy_(text[1][batches[step][:, :-1]])
        loss = compiled(letters, make_mask())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        times.append(time.perf_counter() - begin)
        if step % 50 == 0:
            print(f"{name:14s} step {step:4d} loss {losses[-1]:.4f} after {times[-1]:5.1f} s", flush=True)
    apart = [b - a for a, b in zip(times[WARM_UP:], times[WARM_UP + 1 :], strict=False)]
    return {"losses": losses, "ms": statistics.median(apart) * 1e3}


def draw(path, found):
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for (name, of), style in zip(found.items(), ("-", "--", ":"), strict=False):
        axes.plot(of["losses"], style, label=f"{name}, {of['ms']:.1f} ms a step", linewidth=1.2)
    axes.set_xlabel("step")
    axes.set_ylabel("loss of the next letter")
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--steps", type=int, default=300, help="at least 100")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path, help="write all losses here")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the curves; needs matplotlib")
    options = parser.parse_args()
    if options.steps < 100:
        parser.error(f"--steps is {options.steps}; expected at least 100, the first {WARM_UP} of which are not timed")
    repository = Path(__file__).resolve().parents[2]
    files = options.files or sorted([*repository.glob("*.md"), *(repository / "docs").rglob("*.md")])
    device = torch.device(options.device)
    text = [one.to(device) for one in read_text(files)]
    generator = torch.Generator().manual_seed(0)
    first = torch.randint(len(text[0]) - options.length, (options.steps, options.batch, 1), generator=generator)
    batches = (first + torch.arange(options.length + 1)).to(device)
    sections = torch.zeros(options.batch, options.length, dtype=torch.int32, device=device)
    found = {}
    for name, (make_mask, attend) in contenders(sections).items():
        given = (name, make_mask, attend, options, text, batches, sections)
        if (of := first_result(name, lambda given=given: train(*given))) is not None:
            found[name] = of
            if options.json:  # at once: what comes next may run out of memory
                options.json.write_text(json.dumps(found))
    want = found["unfused maths"]["losses"]
    noise = statistics.mean(abs(b - a) for a, b in zip(want[-50:], want[-49:], strict=False))
    wrong = "Flashlift" not in found
    for name, of in found.items():
        apart = statistics.mean(abs(a - b) for a, b in zip(of["losses"][-50:], want[-50:], strict=True))
        last = statistics.mean(of["losses"][-50:])
        wrong |= not apart <= noise / 10
        print(f"{name:14s} {of['ms']:7.2f} ms a step, loss {last:.4f}, {apart:.4f} from unfused maths")
    print(f"{'':14s} from step to step {noise:.4f}")
    if options.plot:
        draw(options.plot, found)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
