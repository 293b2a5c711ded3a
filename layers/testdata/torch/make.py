# Writes golden.json: batch norms of one to three dimensions, after three micro-batches, with the gradients of the last one, their
# running averages and their output in evaluation, as PyTorch computes them on the CPU in float64 from float32 numbers that the test makes
# too. Run with torch 2.15.0:
#
#   python3 layers/testdata/torch/make.py
import json
import pathlib

import torch

CASES = [
    dict(name="BatchNorm1d", shape=[4, 3, 7]),
    dict(name="BatchNorm1d", shape=[5, 4]),
    dict(name="BatchNorm2d", shape=[3, 5, 4, 6], momentum=0.3, eps=1e-3),
    dict(name="BatchNorm3d", shape=[2, 3, 3, 2, 4]),
]


def tensor(number, shape):
    """Numbers from -1 to 1 that the test makes too."""
    n = torch.Size(shape).numel()
    x = (torch.arange(n, dtype=torch.int64) * 2654435761 + number * 97531) % 2**32
    return (x.double() / 2**31 - 1).float().double().reshape(shape)


def numbers(t):
    return [float("%.9g" % x) for x in t.detach().flatten().tolist()]


def run(case):
    shape, options = case["shape"], {k: case[k] for k in ("momentum", "eps") if k in case}
    norm = getattr(torch.nn, case["name"])(shape[1], dtype=torch.float64, **options)
    with torch.no_grad():
        norm.weight.copy_(tensor(1, shape[1:2]))
        norm.bias.copy_(tensor(2, shape[1:2]))
    for step in range(3):
        norm.zero_grad()
        x = (tensor(3 + step, shape) * (1 + step) + step).requires_grad_()
        y = norm(x)
        y.backward(tensor(9, shape) ** 2)
    norm.eval()
    return dict(case, y=numbers(y), dx=numbers(x.grad), dweight=numbers(norm.weight.grad), dbias=numbers(norm.bias.grad),
                mean=numbers(norm.running_mean), var=numbers(norm.running_var), eval=numbers(norm(x)))


if __name__ == "__main__":
    path = pathlib.Path(__file__).with_name("golden.json")
    path.write_text("[\n" + ",\n".join(json.dumps(run(c)) for c in CASES) + "\n]\n")
