"""Writes float8.json: what torch makes of numbers of 16 and 32 bits in 8 bits, and back.

Inputs are all bfloat16 numbers in the order of their codes, and the float32 numbers at, next below and next above the
mean of every two neighbours of the 8-bit type from 0 up, with both signs. A result is the CRC-32 of its codes.
"""

import json
import os
import zlib

import torch

here = os.path.dirname(os.path.abspath(__file__))
every = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
out = {"torch": torch.__version__.split("+")[0]}


def crc(codes):
    return zlib.crc32(codes.contiguous().view(torch.uint8).numpy().tobytes())


for name, dtype, top in (("e4m3", torch.float8_e4m3fn, 0x7E), ("e5m2", torch.float8_e5m2, 0x7B)):
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)
    values = codes[: top + 1].float()
    means = (values[1:] + values[:-1]) / 2
    at = means.view(torch.int32)
    edges = torch.stack([at - 1, at, at + 1], 1).reshape(-1)
    edges = torch.cat([edges, edges | -(1 << 31)]).view(torch.float32)
    back = {}
    for to in (torch.float32, torch.bfloat16, torch.float16):
        v = codes.to(to)
        back[str(to)[6:]] = crc(torch.where(v.isnan(), torch.zeros_like(v), v))  # NaNs have many codes
    out[name] = {"bfloat16": crc(every.to(dtype)), "edges": crc(edges.to(dtype)), "back": back}

with open(os.path.join(here, "float8.json"), "w") as f:
    json.dump(out, f, indent=1)
    f.write("\n")
