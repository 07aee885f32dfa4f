"""The sentence encoder of the demo as files for a client without Python: the module, and its arguments' bytes.

python examples/minilm/export.py FOLDER [BATCH LENGTH]
client FOLDER/minilm.mlir FUSING_PLUGIN.so PLUGIN.so --inputs FOLDER/minilm.bin
"""

import sys
from pathlib import Path

import jax
import numpy as np
from demo import documents
from model import encode, load


def main(folder: str, batch: str = "8", length: str = "512") -> None:
    weights, tokenizer = load()
    arguments = (weights, *documents(tokenizer, int(batch), int(length)))
    # All arguments stay, used or not, so that the file is in the order of main's.
    lowered = jax.jit(encode, keep_unused=True).lower(*arguments)
    (Path(folder) / "minilm.mlir").write_text(lowered.as_text())
    with (Path(folder) / "minilm.bin").open("wb") as file:
        for array, aval in zip(jax.tree.leaves(arguments), jax.tree.leaves(lowered.in_avals), strict=True):
            file.write(np.asarray(array, aval.dtype).tobytes())


if __name__ == "__main__":
    main(*sys.argv[1:])
