"""Writes golden.json: poolings and resizes of PyTorch, forward and backward.

Operands are x[i] = (7919·i mod 1009)/128 − 4 and dy[i] = (104729·i mod 997)/64 − 8, which float32 holds.
python make.py, with torch 2.15.
"""

import json
import os

import torch
import torch.nn.functional as F


def operand(shape, a, m, d, s):
    n = 1
    for k in shape:
        n *= k
    return (((torch.arange(n, dtype=torch.int64) * a) % m).to(torch.float32) / d - s).reshape(shape)


def case(kind, size, f, **shape):
    x = operand([2, 2, *size], 7919, 1009, 128, 4).requires_grad_()
    y = f(x)
    dy = operand(list(y.shape), 104729, 997, 64, 8)
    y.backward(dy)
    digits = lambda t: [float(f"{v:.9g}") for v in t.detach().flatten().tolist()]
    return {"Kind": kind, "Size": size, "Out": list(y.shape[2:]), **shape, "Y": digits(y), "DX": digits(x.grad)}


def pools():
    mx = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
    avg = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
    for size, k, s, p, d, ceil in [
        ([9], [3], [2], [1], [1], False),
        ([7, 6], [3, 3], [2, 2], [1, 1], [1, 1], False),
        ([7, 6], [2, 3], [2, 1], [0, 1], [2, 1], True),
        ([6, 8], [2, 2], [2, 2], [0, 0], [1, 1], False),
        ([3, 5, 4], [2, 3, 2], [1, 2, 2], [1, 1, 0], [1, 1, 1], True),
    ]:
        shape = {"Kernel": k, "Stride": s, "Pad": p, "Ceil": ceil}
        yield case("max", size, lambda x: mx[len(size)](x, k, s, p, d, ceil), Dilation=d, **shape)
        for skip in [False, True]:
            yield case("avg", size, lambda x: avg[len(size)](x, k, s, p, ceil, not skip), Skip=skip, **shape)
    for size, out in [([7], [3]), ([7, 5], [3, 4]), ([7, 5], [1, 1]), ([4, 5, 3], [3, 2, 2])]:
        n = len(size)
        adaptive = [{1: F.adaptive_max_pool1d, 2: F.adaptive_max_pool2d, 3: F.adaptive_max_pool3d}, {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}]
        for kind, f in zip(["adaptive max", "adaptive avg"], adaptive):
            yield case(kind, size, lambda x: f[n](x, out))


def resizes():
    for mode, sizes in [
        ("nearest", [([5], [8]), ([5, 7], [8, 3]), ([2, 3, 4], [3, 5, 2])]),
        ("nearest-exact", [([5], [8]), ([5, 7], [8, 3]), ([2, 3, 4], [3, 5, 2])]),
        ("linear", [([5], [8])]),
        ("bilinear", [([5, 7], [8, 3]), ([4, 1], [1, 3])]),
        ("trilinear", [([2, 3, 4], [3, 5, 2])]),
        ("bicubic", [([5, 7], [8, 3]), ([3, 2], [5, 5])]),
    ]:
        for size, out in sizes:
            for align in [False] if mode.startswith("nearest") else [False, True]:
                for smooth in [False, True] if mode.startswith("bi") else [False]:
                    yield case(mode, size, lambda x: F.interpolate(x, out, mode=mode, align_corners=None if mode.startswith("nearest") else align, antialias=smooth), Align=align, Antialias=smooth)


path = os.path.join(os.path.dirname(__file__), "golden.json")
with open(path, "w") as f:
    cases = [json.dumps(c, separators=(",", ":")) for c in [*pools(), *resizes()]]
    f.write("[\n" + ",\n".join(cases) + "\n]\n")
print(len(cases), "cases", os.path.getsize(path), "bytes")
