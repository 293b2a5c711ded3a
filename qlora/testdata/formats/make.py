"""Makes the files of this folder with transformers, bitsandbytes and torch, on the CPU.

Python 3.11, bitsandbytes 0.50.2, safetensors 0.8.0, torch 2.15.0, transformers 5.23.0:

    python qlora/testdata/formats/make.py

weights.safetensors  weights in MXFP4, FP8 and INT8, with the names and types of published files
weights.json         the CRC-32 of the little-endian values that these decode to in float32 and in bfloat16, and of INT8
                     the float16 weight, in base64, that bitsandbytes quantized

MXFP4 is decoded by transformers' convert_moe_packed_tensors, whose last two dimensions are exchanged back; FP8 by its
Fp8Dequantize, and where blocks are partial by the same product in torch; INT8 by bitsandbytes' int8_vectorwise_dequant.
"""

import base64
import json
import pathlib
import zlib

import bitsandbytes as bnb
import bitsandbytes.functional as F
import torch
from safetensors.torch import save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

here = pathlib.Path(__file__).parent
tensors, rows = {}, []


def data(x):
    return x.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def add(name, kind, shape, f32, bf16):
    assert f32.dtype == torch.float32 and bf16.dtype == torch.bfloat16 and f32.numel() == bf16.numel()
    rows.append({"name": name, "type": kind, "shape": list(shape), "f32": zlib.crc32(data(f32)), "bf16": zlib.crc32(data(bf16))})


def mxfp4(name, *shape):
    """Random codes; scales of all sizes in the first blocks, usual ones in the others."""
    blocks = torch.randint(0, 256, (*shape[:-1], shape[-1] // 32, 16), dtype=torch.uint8)
    scales = torch.randint(110, 130, blocks.shape[:-1], dtype=torch.uint8)
    for i, s in enumerate((0, 1, 7, 120, 127, 250, 254)):
        scales.view(-1)[i % scales.numel()] = s
    tensors[name + "_blocks"], tensors[name + "_scales"] = blocks, scales
    out = []
    for dtype in torch.float32, torch.bfloat16:
        experts = blocks if len(shape) == 3 else blocks[None]
        y = convert_moe_packed_tensors(experts.clone(), scales if len(shape) == 3 else scales[None], dtype=dtype)
        out.append(y.transpose(1, 2).contiguous())
    add(name, "mxfp4", shape, *out)


def fp8(name, kind, shape, scale, grid, suffix="_scale_inv", reference=True):
    dtype = torch.float8_e4m3fn if kind == "fp8" else torch.float8_e5m2
    w = (torch.randn(shape) * 60).to(dtype)
    every = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype).float()
    every = every[every.isfinite()]
    w.view(-1)[: every.numel()] = every.to(dtype)
    tensors[name], tensors[name + suffix] = w, scale
    s = scale.float().reshape(grid)
    if reference:
        op = Fp8Dequantize(None)
        f32 = op._dequantize_one(w, s, torch.float32)
        bf16 = op._dequantize_one(w, s, torch.bfloat16)
    else:
        f32 = w.float() * s.repeat_interleave(128, 0)[: shape[0]].repeat_interleave(128, 1)[:, : shape[1]]
        bf16 = f32.to(torch.bfloat16)
    add(name, kind, shape, f32, bf16)


def int8(name, out, cols):
    layer = bnb.nn.Linear8bitLt(cols, out, bias=False, has_fp16_weights=False, threshold=6.0)
    weight = (torch.randn(out, cols) * 0.02).half()
    codes, absmax, _ = F.int8_vectorwise_quant(weight)
    layer.weight = bnb.nn.Int8Params(codes, requires_grad=False, has_fp16_weights=False, CB=codes, SCB=absmax)
    saved = layer.state_dict()
    assert saved["weight"].dtype == torch.int8 and saved["SCB"].dtype == torch.float32
    for key, value in saved.items():
        tensors[f"{name}.{key}"] = value
    f32 = F.int8_vectorwise_dequant(saved["weight"], saved["SCB"])
    add(name + ".weight", "int8", (out, cols), f32, f32.to(torch.bfloat16))
    rows[-1]["src"] = base64.b64encode(data(weight)).decode()


torch.manual_seed(4)
mxfp4("experts.gate_up_proj", 2, 6, 96)
mxfp4("plain.weight", 5, 64)
fp8("block.weight", "fp8", (256, 384), torch.rand(2, 3) * 0.01 + 1e-4, (2, 3))
fp8("ragged.weight", "fp8", (150, 200), torch.rand(2, 2) * 0.01 + 1e-4, (2, 2), reference=False)
fp8("row.weight", "fp8", (24, 40), (torch.rand(24, 1) * 0.01).bfloat16(), (24, 1), "_scale")
fp8("tensor.weight", "fp8e5m2", (20, 30), torch.tensor(0.0123), (1, 1), "_scale")
int8("wide", 24, 80)
save_file({k: v.contiguous() for k, v in tensors.items()}, here / "weights.safetensors", metadata={"format": "pt"})
(here / "weights.json").write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
