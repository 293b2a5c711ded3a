"""Writes matrices.json: parameters after steps 1, 2, 10 and 20 of optimizers for matrices.

    pip install torch==2.15.0 numpy==2.4.6
    python quant8/testdata/torch/make.py > quant8/testdata/torch/matrices.json

Made with Python 3.11 and torch 2.15.0, on the CPU.

adafactor   torch.optim.Adafactor in float32, with and without weight decay and with
            other constants; the vector has no rows
momentum    the same in float64 with the first moment of Tensor2Tensor's Adafactor, which
            is that of the paper's authors: the mean of the steps that torch's takes
muon        torch.optim.Muon's equations in float64
muon.torch  torch.optim.Muon itself, which orthogonalizes in bfloat16
"""
import json
import math

import torch

STEPS, SAVED = 20, (1, 2, 10, 20)
SHAPES = {"wide": (6, 11), "tall": (11, 6), "square": (7, 7), "row": (1, 9), "column": (9, 1), "vector": (13,)}
torch.set_num_threads(1)
torch.manual_seed(7)
start = {name: torch.randn(shape) for name, shape in SHAPES.items()}
grads = {name: [torch.randn(shape) * (0.1 if i % 3 else 2.0) for i in range(STEPS)] for name, shape in SHAPES.items()}
grads["wide"][4].zero_()
grads["square"][0][3].zero_()  # a row without a second moment at first
for g in grads["tall"]:
    g[:, 2] = 0  # a column without one


def flat(x):
    """Nine digits tell every float32 from its neighbours."""
    return [float(f"{v:.9g}") for v in x.flatten().tolist()]


def run(name, make, dtype=torch.float32):
    p = start[name].to(dtype).clone().requires_grad_()
    opt, after = make([p]), []
    for i, g in enumerate(grads[name], 1):
        p.grad = g.to(dtype).clone()
        opt.step()
        if i in SAVED:
            after.append(flat(p.detach()))
    return after


def momentum(name, beta1, **kw):
    """p <- p·(1 - lr·wd) - m, where m is the mean of torch's steps."""
    p = start[name].double()
    probe = p.clone().requires_grad_()
    opt = torch.optim.Adafactor([probe], **kw)
    m, after = torch.zeros_like(p), []
    for i, g in enumerate(grads[name], 1):
        with torch.no_grad():
            probe.copy_(p)
        probe.grad = g.double()
        opt.step()
        decayed = p * (1 - kw["lr"] * kw["weight_decay"])
        m = beta1 * m + (1 - beta1) * (decayed - probe.detach())
        p = decayed - m
        if i in SAVED:
            after.append(flat(p))
    return after


def orthogonalized(x):
    """Five steps of Newton-Schulz in float64."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = x.size(0) > x.size(1)
    x = x.T if tall else x
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


def muon(name, lr, weight_decay, mu, nesterov, adjust_lr_fn):
    p = start[name].double()
    rows, cols = p.shape
    m, after = torch.zeros_like(p), []
    scale = math.sqrt(max(1, rows / cols)) if adjust_lr_fn == "original" else 0.2 * math.sqrt(max(rows, cols))
    for i, g in enumerate(grads[name], 1):
        g = g.double()
        m = mu * m + (1 - mu) * g
        o = orthogonalized((1 - mu) * g + mu * m if nesterov else m)
        p = p * (1 - lr * weight_decay) - lr * scale * o
        if i in SAVED:
            after.append(flat(p))
    return after


A, M = torch.optim.Adafactor, torch.optim.Muon
MATRICES = [name for name in SHAPES if name != "vector"]
plain = dict(lr=1e-2, weight_decay=0.1, mu=0.95, nesterov=True, adjust_lr_fn="original")
other = dict(lr=1e-2, weight_decay=0.0, mu=0.9, nesterov=False, adjust_lr_fn="match_rms_adamw")
torchs = lambda o: lambda p: M(p, lr=o["lr"], weight_decay=o["weight_decay"], momentum=o["mu"],
                               nesterov=o["nesterov"], adjust_lr_fn=o["adjust_lr_fn"])
runs = {
    "adafactor": {n: run(n, lambda p: A(p)) for n in SHAPES},
    "adafactor.decayed": {n: run(n, lambda p: A(p, lr=0.5, weight_decay=0.1)) for n in SHAPES},
    "adafactor.other": {n: run(n, lambda p: A(p, lr=0.1, beta2_decay=-0.5, eps=(0.3, 0.9), d=1.5)) for n in SHAPES},
    "momentum": {n: momentum(n, 0.9, lr=0.05, weight_decay=0.1, eps=(2**-23, 1e-3)) for n in SHAPES},
    "muon": {n: muon(n, **plain) for n in MATRICES},
    "muon.other": {n: muon(n, **other) for n in MATRICES},
    "muon.torch": {n: run(n, torchs(plain)) for n in MATRICES},
    "muon.torch.other": {n: run(n, torchs(other)) for n in MATRICES},
}
print(json.dumps({
    "shapes": SHAPES,
    "start": {n: flat(p) for n, p in start.items()},
    "gradients": {n: [flat(g) for g in gs] for n, gs in grads.items()},
    "after": runs,
}, separators=(",", ":")))
