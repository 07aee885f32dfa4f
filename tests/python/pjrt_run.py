"""Compiles and runs modules with pypjrt, in a process of its own: pjrt_run.py PLUGIN FOLDER RESULTS

FOLDER holds NAME.mlir, or NAME.vhlo, and NAME.npz with its arguments; RESULTS, an .npz, gets NAME/0, NAME/1 …
"""

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pypjrt

BY_NUMBER = dict(  # PJRT_Buffer_Type
    enumerate(
        (np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
        + (np.float16, np.float32, np.float64, ml_dtypes.bfloat16, np.complex64, np.complex128),
        start=1,
    )
)
NUMBERS = {np.dtype(scalar).name: number for number, scalar in BY_NUMBER.items()}


def compile_and_run(client, device, program, arguments):
    executable = client.compile(program)
    return run(client, device, executable, arguments)


def run(client, device, executable, arguments):
    buffers = [
        client.buffer_from_host(a.reshape(-1).view(np.uint8), NUMBERS[a.dtype.name], list(a.shape), device)
        for a in arguments
    ]
    results = []
    for output in executable(*buffers):
        result = np.empty(output.dimensions, BY_NUMBER[int(output.element_type)])
        output.to_host(result.reshape(-1).view(np.uint8))
        results.append(result)
    return results


def arguments_of(path):
    with np.load(path) as file:
        # numpy stores bfloat16 as two bytes without a name.
        return [
            file[name].view(ml_dtypes.bfloat16) if file[name].dtype.kind == "V" else file[name] for name in file.files
        ]


def main(plugin, folder, results):
    found = {}
    with pypjrt.Client.create(plugin) as client, client.devices() as devices:
        for path in sorted(Path(folder).iterdir()):
            if path.suffix in (".mlir", ".vhlo"):
                arguments = arguments_of(path.with_suffix(".npz"))
                outputs = compile_and_run(client, devices[0], path.read_bytes(), arguments)
                found |= {f"{path.stem}/{i}": out.astype(np.float64) for i, out in enumerate(outputs)}
    np.savez(results, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
