"""Writes rules.json: parameters after each of 20 steps of torch.optim's optimizers, and
of bitsandbytes' 32-bit kernels for the rules that torch lacks.

    python make.py > rules.json

Made with torch 2.15.0 and bitsandbytes 0.50.2, on the CPU, in float32.
"""
import json

import bitsandbytes.functional as F
import torch

N, STEPS = 24, 20
torch.manual_seed(5)
start = torch.randn(N)
grads = [torch.randn(N) * (0.1 if i % 3 else 2.0) for i in range(STEPS)]


def run_torch(make):
    p = start.clone().requires_grad_()
    opt = make([p])
    after = []
    for g in grads:
        p.grad = g.clone()
        opt.step()
        after.append(p.detach().clone())
    return after


def run_bnb(name, states, **kw):
    p = start.clone()
    s1 = torch.zeros((2, N) if name == "ademamix" else N)
    s2 = torch.zeros(N) if states > 1 else None
    after = []
    for t, g in enumerate(grads, 1):
        F.optimizer_update_32bit(name, g.clone(), p, s1, kw["beta1"], kw["eps"], t, kw["lr"], state2=s2,
                                 beta2=kw["beta2"], beta3=kw.get("beta3", 0.0), alpha=kw.get("alpha", 0.0),
                                 weight_decay=kw["weight_decay"])
        after.append(p.clone())
    return after


O = torch.optim
runs = {
    "Adam decoupled": run_torch(lambda p: O.AdamW(p, lr=1e-2, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1)),
    "Adam coupled": run_torch(lambda p: O.Adam(p, lr=1e-2, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1)),
    "Momentum": run_torch(lambda p: O.SGD(p, lr=1e-2, momentum=0.9, weight_decay=0.1)),
    "Momentum dampened": run_torch(lambda p: O.SGD(p, lr=1e-2, momentum=0.9, dampening=0.5, weight_decay=0.1)),
    "Nesterov": run_torch(lambda p: O.SGD(p, lr=1e-2, momentum=0.9, nesterov=True, weight_decay=0.1)),
    "RMSprop": run_torch(lambda p: O.RMSprop(p, lr=1e-2, alpha=0.9, eps=1e-8, weight_decay=0.1)),
    "Adagrad": run_torch(lambda p: O.Adagrad(p, lr=1e-2, eps=1e-10, weight_decay=0.1)),
    "Lion": run_bnb("lion", 1, lr=1e-2, beta1=0.9, beta2=0.99, eps=0.0, weight_decay=0.1),
    "AdEMAMix": run_bnb("ademamix", 2, lr=1e-2, beta1=0.9, beta2=0.99, beta3=0.999, alpha=5.0, eps=1e-8, weight_decay=0.1),
}
flat = lambda x: [float(v) for v in x]
print(json.dumps({
    "start": flat(start), "gradients": [flat(g) for g in grads],
    "after": {k: [flat(v[i]) for i in (0, 1, 9, 19)] for k, v in runs.items()},
}, separators=(",", ":")))
