"""A mask as text."""

import jax
import numpy as np

_CELLS = {"unicode": ("  ", "░░", "██"), "ascii": ("  ", "..", "##")}
_PADDING, _MIXED = -1, -2


def picture(
    mask: np.ndarray,
    tile: tuple[int, int],
    ids: tuple[np.ndarray, np.ndarray] | None,
    most: tuple[int, int] | None,
    charset: str,
) -> str:
    """A picture of a mask [q_len, kv_len], with two characters per tile: empty, partial or full. ids: the segments of
    queries and keys, printed beside their tiles. most: the largest number of rows and columns; tiles grow to fit."""
    if most is not None:
        larger = (-(-length // (size * limit)) for length, size, limit in zip(mask.shape, tile, most, strict=True))
        tile = tile[0] * max(next(larger), 1), tile[1] * max(next(larger), 1)
    kept = _tiles(_tiles(mask, tile[0], 0, False), tile[1], 2, False)
    classes = kept.any((1, 3)).astype(int) + kept.all((1, 3))
    lines = ["".join(_CELLS[charset][one] for one in row) for row in classes]
    empty, partial, full = _CELLS[charset]
    rule = "==" * classes.shape[1]
    left, top = [""] * len(lines), []
    legend = [f"{full} full  {partial} partial  {empty} empty"]
    if ids is not None:
        of_q, of_kv = (_of_tiles(one, size) for one, size in zip(ids, tile, strict=True))
        left = [f"{ {_PADDING: 'PAD', _MIXED: 'MIX'}.get(one, one)!s:>6} " for one in of_q]
        top = [" " * 9 + "".join({_PADDING: "  ", _MIXED: "??"}.get(one, f"{one % 100:02d}") for one in of_kv)]
        legend += ["left: the queries' segment, above: the keys'; PAD is -1, MIX and ?? are several"]
    gap = " " * len(left[0]) if left else ""
    body = [f"{name}||{line}||" for name, line in zip(left, lines, strict=True)]
    title = f"mask {list(mask.shape)}, tiles of {tile[0]} x {tile[1]}"
    return "\n".join([title, *top, f"{gap}  {rule}", *body, f"{gap}  {rule}", *legend])


def _tiles(array: np.ndarray, size: int, axis: int, fill: bool | int) -> np.ndarray:
    """Cuts the axis into tiles; the last one is padded."""
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, -array.shape[axis] % size)
    padded = np.pad(array, widths, constant_values=fill)
    return padded.reshape(*array.shape[:axis], -1, size, *array.shape[axis + 1 :])


def _of_tiles(ids: np.ndarray, size: int) -> list[int]:
    tiles = _tiles(ids, size, 0, _PADDING)
    return [int(one) for one in np.where((tiles == tiles[:, :1]).all(1), tiles[:, 0], _MIXED)]


def as_numpy(array: jax.Array) -> np.ndarray:
    return np.asarray(jax.device_get(array))
