"""Writes runs.json: parameters after steps 1, 2, 10 and 20 of the authors' APOLLO and GaLore, and the matrices onto
which they projected gradients, with a row for each direction.

    pip install torch==2.15.0 transformers==5.23.0 bitsandbytes==0.50.2
    pip install --no-deps apollo-torch==1.0.3 galore-torch==1.0
    python quant8/testdata/lowrank/make.py > quant8/testdata/lowrank/runs.json

Made with Python 3.11, on the CPU. Random matrices are those of the package times the root of the rank: normal numbers
of variance 1.
"""
import json
import math

import torch
from apollo_torch import APOLLOAdamW
from galore_torch import GaLoreAdamW

STEPS, SAVED, GAP = 20, (1, 2, 10, 20), 4
SHAPES = {"wide": (6, 11), "tall": (11, 6), "square": (7, 7), "vector": (13,)}
torch.set_num_threads(1)
torch.manual_seed(11)
start = {name: torch.randn(shape) for name, shape in SHAPES.items()}
grads = {name: [torch.randn(shape) * (0.1 if i % 3 else 2.0) for i in range(STEPS)] for name, shape in SHAPES.items()}


def flat(x):
    """Nine digits tell every float32 from its neighbours."""
    return [float(f"{v:.9g}") for v in x.flatten().tolist()]


def run(name, make, group, normal):
    p = start[name].clone().requires_grad_()
    low = group if p.dim() == 2 else {}
    opt, after, directions = make([{"params": [p], **low}]), [], []
    for i, g in enumerate(grads[name], 1):
        p.grad = g.clone()
        opt.step()
        if low and (i - 1) % GAP == 0:
            m = opt.state[p]["projector"].ortho_matrix
            m = m.T if p.shape[0] < p.shape[1] else m
            directions.append(flat(m * math.sqrt(group["rank"]) if normal else m))
        if i in SAVED:
            after.append(flat(p.detach()))
    return {"after": after, "directions": directions}


def apollo(rank, kind, scale, decay, **kw):
    group = {"rank": rank, "proj": "random", "scale_type": kind, "scale": scale, "update_proj_gap": GAP, "proj_type": "std"}
    make = lambda groups: APOLLOAdamW(groups, lr=1e-2, weight_decay=decay, **kw)
    return {name: run(name, make, group, True) for name in SHAPES}


def galore(rank, scale, decay):
    group = {"rank": rank, "scale": scale, "update_proj_gap": GAP, "proj_type": "std"}
    make = lambda groups: GaLoreAdamW(groups, lr=1e-2, weight_decay=decay, no_deprecation_warning=True)
    return {name: run(name, make, group, False) for name in SHAPES}


runs = {
    "apollo": apollo(3, "channel", 1, 0.1),
    "apollo.unlimited": apollo(2, "channel", 4, 0.0, disable_nl=True),
    "mini": apollo(1, "tensor", 128, 0.1),
    "mini.front": apollo(1, "tensor", 128, 0.1, scale_front=True),
    "galore": galore(3, 0.25, 0.1),
    "galore.other": galore(4, 1.0, 0.0),
}
print(json.dumps({
    "shapes": SHAPES,
    "start": {n: flat(p) for n, p in start.items()},
    "gradients": {n: [flat(g) for g in gs] for n, gs in grads.items()},
    "runs": runs,
}, separators=(",", ":")))
