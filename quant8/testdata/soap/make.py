"""Writes runs.json: parameters after steps 1, 2, 3, 10 and 20 of the authors' SOAP.

Their code is the file soap.py of https://github.com/nikhilvyas/SOAP, commit a1e553530fde97d0e6b307d7c82ac6d38b072340,
which must be on the path of modules:

    pip install torch==2.15.0
    PYTHONPATH=folder/of/soap.py python quant8/testdata/soap/make.py > quant8/testdata/soap/runs.json

Made with Python 3.11, on the CPU. A matrix has preconditioners on both sides only if it is square: the first gradient
of another one has no full rank on its longer side, whose eigenvectors are then arbitrary.
"""
import json

import torch
from soap import SOAP

STEPS, SAVED = 20, (1, 2, 3, 10, 20)
SHAPES = {"wide": (6, 11), "tall": (11, 6), "square": (7, 7), "vector": (13,), "neither": (9, 10)}
RUNS = {
    "soap": dict(lr=1e-2, weight_decay=0.1, precondition_frequency=3, max_precond_dim=8),
    "soap.other": dict(lr=1e-2, betas=(0.9, 0.99), shampoo_beta=0.8, eps=1e-3, weight_decay=0.0, precondition_frequency=1,
                       max_precond_dim=8),
}
torch.set_num_threads(1)
torch.manual_seed(11)
start = {name: torch.randn(shape) for name, shape in SHAPES.items()}
grads = {name: [torch.randn(shape) * (0.5 if i % 3 else 2.0) for i in range(STEPS)] for name, shape in SHAPES.items()}


def flat(x):
    """Nine digits tell every float32 from its neighbours."""
    return [float(f"{v:.9g}") for v in x.flatten().tolist()]


def run(name, options):
    p = start[name].clone().requires_grad_()
    opt, after = SOAP([p], **options), []
    for i, g in enumerate(grads[name], 1):
        p.grad = g.clone()
        opt.step()
        if i in SAVED:
            after.append(flat(p.detach()))
    return after


print(json.dumps({
    "shapes": SHAPES,
    "start": {n: flat(p) for n, p in start.items()},
    "gradients": {n: [flat(g) for g in gs] for n, gs in grads.items()},
    "runs": {rule: {n: run(n, options) for n in SHAPES} for rule, options in RUNS.items()},
}, separators=(",", ":")))
