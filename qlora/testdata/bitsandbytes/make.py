"""Makes the files of this folder with bitsandbytes, on the CPU.

Python 3.11, bitsandbytes 0.50.2, torch 2.15.0, safetensors 0.8.0:

    pip install bitsandbytes==0.50.2 torch==2.15.0 safetensors==0.8.0
    python qlora/testdata/bitsandbytes/make.py

blocks.json          vectors, their packed codes, the absmax of their blocks, and the
                     values that these decode to, of the type of the vector
double.json          absmax, their codes, offset and nested absmax, and the absmax that
                     these decode to; the first has the map of all codes
weights.safetensors  tensors as Linear4bit saves them
weights.json         the values that these decode to

Data are base64 of little-endian bytes. On the CPU this version decodes matrices
wrongly when their rows are not whole blocks (40x48 in blocks of 64); there are
none here.
"""

import base64
import json
import pathlib

import bitsandbytes.functional as F
import torch
from safetensors.torch import save_file

here = pathlib.Path(__file__).parent
TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def data(x):
    return base64.b64encode(x.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()).decode()


def write(name, rows):
    (here / name).write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


def vectors():
    """Yields a type, a block and a vector."""
    for dtype in TYPES.values():
        for block, n in (32, 201), (64, 196), (128, 131):
            yield dtype, block, torch.randn(n) * 0.02
    yield torch.float16, 4096, torch.randn(4101)
    scales = torch.tensor([0.0, 1e-30, 1.0, 1e30]).repeat_interleave(64)
    yield torch.float32, 64, torch.randn(256) * scales
    yield torch.bfloat16, 32, torch.linspace(-1, 1, 160)


def blocks():
    torch.manual_seed(1)
    for dtype, block, x in vectors():
        for kind in "nf4", "fp4":
            if kind == "fp4" and block == 4096:
                continue
            x = x.to(dtype)
            packed, state = F.quantize_4bit(x, blocksize=block, quant_type=kind)
            y = F.dequantize_4bit(packed, state)
            assert y.dtype == dtype and y.numel() == x.numel()
            yield {
                "type": kind, "dtype": [k for k, t in TYPES.items() if t == dtype][0], "block": block,
                "src": data(x), "packed": data(packed), "absmax": data(state.absmax), "values": data(y),
            }


def double():
    torch.manual_seed(2)
    for n in 1, 255, 256, 600:
        x = torch.randn(n * 64) * torch.rand(n).repeat_interleave(64)
        absmax = F.quantize_4bit(x, quant_type="nf4")[1].absmax
        state = F.quantize_4bit(x, quant_type="nf4", compress_statistics=True)[1]
        back = F.dequantize_blockwise(state.absmax, state.state2) + state.offset
        yield {
            "absmax": data(absmax), "codes": data(state.absmax), "nested": data(state.state2.absmax),
            "offset": data(state.offset), "values": data(back), "map": data(state.state2.code) if n == 1 else "",
        }


def weights():
    torch.manual_seed(3)
    tensors, values = {}, []
    for name, kind, dtype, block, shape, nested in (
        ("up.weight", "nf4", torch.bfloat16, 64, (30, 64), True),
        ("down.weight", "fp4", torch.float32, 128, (24, 50), False),
        ("odd.weight", "nf4", torch.float16, 32, (5, 3, 7), True),
    ):
        x = (torch.randn(shape) * 0.02).to(dtype)
        packed, state = F.quantize_4bit(x, blocksize=block, quant_type=kind, compress_statistics=nested)
        tensors[name] = packed
        for key, part in state.as_dict(packed=True).items():
            tensors[f"{name}.{key}"] = part
        values.append({
            "name": name, "type": kind, "dtype": str(dtype)[6:], "block": block, "shape": shape, "double": nested,
            "values": data(F.dequantize_4bit(packed, state)),
        })
    tensors["up.bias"] = torch.zeros(30)
    save_file(tensors, here / "weights.safetensors", metadata={"format": "pt"})
    return values


write("blocks.json", blocks())
write("double.json", double())
write("weights.json", weights())
