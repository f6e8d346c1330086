"""The process that samples: `python -m partrain.engine.sample`.

A request comes on standard input; what there is to say goes to standard output, a line each, and nothing
else does. It is one process on one device, whatever layout the checkpoint was trained under.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from partrain.checkpoint.shelf import read_checkpoint
from partrain.checkpoint.trained import trained
from partrain.engine.speaking import speak
from partrain.errors import RunError
from partrain.run.sampling import Drawn, Ready, Said, SampleRequest

IN_FP32 = {("cpu", "fp16")}
"""Devices and the precisions that they have no arithmetic for; a range of numbers wider than both fits."""


def words(request: SampleRequest) -> Iterator[Said]:
    """What there is to say, as it comes.

    Raises CheckpointError where the checkpoint cannot be read, RunError where the model cannot be used.
    """
    import torch

    from partrain.engine.build import DTYPES
    from partrain.engine.generate import Decoder, drawn
    from partrain.engine.whole import whole_decoder

    path = Path(request.checkpoint)
    manifest = read_checkpoint(path)
    found = trained(manifest)
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    precision = "fp32" if (device.type, found.precision) in IN_FP32 else found.precision
    try:
        steps = whole_decoder(found.model, manifest, path, device=device, dtype=DTYPES[precision])
        decoder = Decoder(found.model, steps, context=request.context)
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        yield Ready(name, precision)
        for token in drawn(decoder, request, device):
            yield Drawn(token)
    except torch.OutOfMemoryError as error:
        raise RunError(
            f"the model does not fit the GPU's free memory: {str(error).splitlines()[0]}",
            hint="on the CPU: CUDA_VISIBLE_DEVICES= partrain sample ...",
        ) from error


def main() -> int:
    """Exit code of the process."""
    return speak(lambda text: words(SampleRequest.from_json(text)))


if __name__ == "__main__":
    sys.exit(main())
