# Writes golden.json: convolutions and transposed convolutions of one to three dimensions, with their gradients, as
# PyTorch computes them on the CPU in float64 from float32 numbers that the test makes too. Run with torch 2.15.0:
#
#   python3 conv/testdata/torch/make.py
import json
import pathlib

import torch
import torch.nn.functional as F

CASES = [
    dict(name="1-d", batch=2, size=[13], inp=4, out=6, kernel=[3]),
    dict(name="1-d, all options", size=[17], inp=4, out=6, kernel=[4], stride=[3], dilation=[2], padding=[3], groups=2),
    dict(name="2-d, 3x3 same", batch=2, size=[7, 9], inp=3, out=5, kernel=[3, 3], padding=[1, 1], same=True, bias=True),
    dict(name="2-d, even kernel same", size=[5, 6], inp=2, out=3, kernel=[2, 4], padding="same", same=True),
    dict(name="2-d, 1x1", size=[5, 6], inp=6, out=4, kernel=[1, 1], bias=True),
    dict(name="2-d, 1x1 stride 2", size=[5, 6], inp=6, out=4, kernel=[1, 1], stride=[2, 2]),
    dict(name="2-d, 7x7 stride 2", size=[11, 12], inp=3, out=4, kernel=[7, 7], stride=[2, 2], padding=[3, 3]),
    dict(name="2-d, strides, dilation, groups", size=[9, 11], inp=4, out=6, kernel=[3, 2], stride=[1, 2], dilation=[2, 3],
         padding=[2, 1], groups=2, bias=True),
    dict(name="2-d, depthwise", size=[6, 7], inp=5, out=5, kernel=[3, 3], padding=[1, 1], groups=5, bias=True),
    dict(name="2-d, depthwise stride 2, multiplier 2", size=[6, 7], inp=3, out=6, kernel=[3, 3], stride=[2, 2], padding=[1, 1], groups=3),
    dict(name="3-d", size=[4, 5, 6], inp=2, out=3, kernel=[3, 3, 3], padding=[1, 1, 1], bias=True),
    dict(name="3-d, patches", size=[4, 6, 6], inp=3, out=7, kernel=[2, 3, 3], stride=[2, 3, 3], bias=True),
    dict(name="3-d, all options", size=[5, 6, 7], inp=4, out=2, kernel=[2, 3, 2], stride=[2, 1, 3], dilation=[1, 2, 2],
         padding=[1, 2, 0], groups=2),
    dict(name="1-d, transposed", size=[6], inp=4, out=3, kernel=[4], stride=[2], padding=[1], transposed=True, bias=True),
    dict(name="2-d, transposed, output padding", size=[4, 5], inp=4, out=6, kernel=[3, 3], stride=[2, 3], padding=[1, 0],
         output_padding=[1, 2], groups=2, transposed=True, bias=True),
    dict(name="2-d, transposed, output padding above the stride", size=[4, 5], inp=2, out=3, kernel=[3, 2], dilation=[2, 3],
         output_padding=[1, 2], transposed=True),
    dict(name="2-d, transposed depthwise", size=[4, 5], inp=3, out=3, kernel=[2, 2], stride=[2, 2], groups=3, transposed=True),
    dict(name="3-d, transposed", size=[2, 3, 4], inp=3, out=2, kernel=[3, 2, 3], stride=[2, 2, 1], padding=[1, 0, 1],
         output_padding=[1, 1, 0], transposed=True),
]


def tensor(number, shape):
    """Numbers from -1 to 1 that the test makes too."""
    n = torch.Size(shape).numel()
    x = (torch.arange(n, dtype=torch.int64) * 2654435761 + number * 97531) % 2**32
    return (x.double() / 2**31 - 1).float().double().reshape(shape)


def numbers(t):
    return [float("%.6g" % x) for x in t.detach().flatten().tolist()]


def run(case):
    dims, groups = len(case["size"]), case.get("groups", 1)
    transposed = case.get("transposed", False)
    x = tensor(1, [case.get("batch", 1), case["inp"], *case["size"]]).requires_grad_()
    shape = [case["inp"], case["out"] // groups] if transposed else [case["out"], case["inp"] // groups]
    w = tensor(2, shape + case["kernel"]).requires_grad_()
    bias = tensor(3, [case["out"]]).requires_grad_() if case.get("bias") else None
    options = dict(stride=case.get("stride", [1] * dims), dilation=case.get("dilation", [1] * dims), padding=case.get("padding", [0] * dims))
    name = f"conv{dims}d"
    if transposed:
        name = f"conv_transpose{dims}d"
        options["output_padding"] = case.get("output_padding", [0] * dims)
    y = getattr(F, name)(x, w, bias, groups=groups, **options)
    y.backward(tensor(4, y.shape))
    out = {k: v for k, v in case.items() if k != "bias" and v != "same"}
    return out | {"outSize": list(y.shape[2:]), "y": numbers(y), "dx": numbers(x.grad), "dw": numbers(w.grad),
                  "db": None if bias is None else numbers(bias.grad)}


cases = ",\n".join(json.dumps(run(c)) for c in CASES)
pathlib.Path(__file__).with_name("golden.json").write_text(f"[\n{cases}\n]\n")
