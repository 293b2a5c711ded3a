"""Writes the files of this folder: parameters after steps of the authors' packages.

    python make.py

Made with torch 2.15.0 and schedulefree 1.4.1, on the CPU, in float32.
"""
import json

import schedulefree
import torch

N, STEPS = 24, 20
torch.manual_seed(5)
start = torch.randn(N)
grads = [torch.randn(N) * (0.1 if i % 3 else 2.0) for i in range(STEPS)]
flat = lambda x: [float(v) for v in x.flatten()]


def schedule_free(mean, warmup, decay=0.1, **kw):
    """The parameters of training, y, or with mean the average that is evaluated, x."""
    p = start.clone().requires_grad_()
    opt = schedulefree.AdamWScheduleFree([p], lr=1e-2, betas=(0.9, 0.99), eps=1e-8, weight_decay=decay, warmup_steps=warmup, **kw)
    after = []
    for g in grads:
        opt.train()
        p.grad = g.clone()
        opt.step()
        if mean:
            opt.eval()
        after.append(p.detach().clone())
    return after


def write(name, runs, **more):
    with open(name + ".json", "w") as f:
        json.dump({"start": flat(start), "gradients": [flat(g) for g in grads], **more,
                   "after": {k: [flat(v[i]) for i in (0, 1, 9, 19)] for k, v in runs.items()}}, f, separators=(",", ":"))


write("schedulefree", {
    "y": schedule_free(False, 5),
    "x": schedule_free(True, 5),
    "no decay": schedule_free(True, 0, 0.0),
    "powers": schedule_free(True, 5, r=0.5, weight_lr_power=1.5, foreach=False),
    "uniform": schedule_free(True, 5, weight_lr_power=0.0),
})
