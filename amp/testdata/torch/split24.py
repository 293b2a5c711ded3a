"""Writes split24.json: float32 numbers rounded to 24 bits, and those to bfloat16, by torch's
float64 and bfloat16 arithmetic, for the tests of package amp. A number of 24 bits has 15 bits after
the point. torch rounds to bfloat16 with ties to even; ties go away from zero here, which is to say to
the bfloat16 of a slightly larger magnitude. Run it with torch 2.15.0:

    python split24.py > split24.json
"""

import json

import torch

torch.manual_seed(1)
lows = [0, 1, 0x7F, 0x80, 0x81, 0xFF, 0x100, 0x180, 0x7F7F, 0x7F80, 0x7F81, 0x7FFF, 0x8000, 0x8080, 0x80FF, 0xFF7F, 0xFF80, 0xFFFF]
highs = [0, 1, 0x7F, 0x80, 0x3F7F, 0x3F80, 0x3F81, 0x42FE, 0x7F7E, 0x7F7F, 0x7F80, 0x8000, 0x8001, 0xBF80, 0xBF81, 0xFF7F, 0xFF80]
bits = [h << 16 | l for h in highs for l in lows if not (h & 0x7F80 == 0x7F80 and l)]  # no NaNs
bits += [int(b) for b in torch.randint(0, 1 << 32, (200,)) if int(b) & 0x7F800000 != 0x7F800000]


def from_bits(b):
    return torch.tensor(b, dtype=torch.int64).to(torch.int32).view(torch.float32)


def to_bits(x):
    return [int(b) & 0xFFFFFFFF for b in x.view(torch.int32)]


x = from_bits(bits)
wide = x.double()
_, exponent = torch.frexp(wide)
gap = torch.ldexp(torch.ones_like(wide), exponent.clamp(min=-125) - 16)
y = torch.where(wide.isinf(), wide, torch.round(wide / gap) * gap)  # to even
y = torch.where(y.abs() >= 2.0**128, torch.copysign(torch.full_like(y, torch.inf), y), y).float()
nudged = torch.where((y.view(torch.int32) & 0xFFFF) == 0x8000, (y.view(torch.int32) + 1).view(torch.float32), y)
upper = nudged.to(torch.bfloat16)
codes = upper.view(torch.int16).to(torch.int64) & 0xFFFF
joined = torch.tensor(to_bits(y), dtype=torch.int64)
rest = (joined - (codes << 16)) >> 8
assert rest.min() == -128 and rest.max() == 127 and ((codes << 16) + (rest << 8) == joined).all()
print(json.dumps({"torch": torch.__version__.split("+")[0], "bits": bits, "upper": codes.tolist(), "rest": rest.tolist(), "joined": joined.tolist()}))
