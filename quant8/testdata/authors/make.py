"""Writes the files of this folder: parameters after steps of the authors' packages.

    python make.py

Made with torch 2.15.0, schedulefree 1.4.1 and prodigyopt 1.1.2, on the CPU, in float32.
"""
import json

import prodigyopt
import schedulefree
import torch


def mezo(steps=10, lr=1e-2, eps=1e-3, decay=0.1):
    """zo_perturb_parameters, zo_step and zo_update of github.com/princeton-nlp/MeZO, large_models/trainer.py, with noise
    that is recorded, on the mean of (p - target)^2 in float64."""
    torch.manual_seed(7)
    p, target = torch.randn(N), torch.randn(N)
    start, noise, after, losses = p.clone(), [], [], []
    loss = lambda: float(((p.double() - target.double()) ** 2).mean())
    for _ in range(steps):
        z = torch.randn(N)
        p = p + 1 * z * eps
        plus = loss()
        p = p + -2 * z * eps
        minus = loss()
        projected = (plus - minus) / (2 * eps)
        p = p + 1 * z * eps
        p = p - lr * (projected * z + decay * p)
        noise.append(z), after.append(p), losses.append([plus, minus])
    with open("mezo.json", "w") as f:
        json.dump({"start": flat(start), "target": flat(target), "noise": [flat(z) for z in noise], "losses": losses,
                   "after": [flat(x) for x in after]}, f, separators=(",", ":"))


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
mezo()


def prodigy(steps=60, lrs=(), zeros=0, missing=(), **kw):
    """Two parameters with gradients (p - target)/2, and the estimate after each step. lrs are the rates of the first
    steps. The gradients of the first steps are zeros, and the second parameter has none in the steps that miss."""
    torch.manual_seed(9)
    p, target = torch.randn(N), torch.randn(N)
    parts = [p[:16].clone().requires_grad_(), p[16:].clone().requires_grad_()]
    opt = prodigyopt.Prodigy(parts, **kw)
    after, d = [], []
    for i in range(steps):
        opt.param_groups[0]["lr"] = lrs[i] if i < len(lrs) else kw.get("lr", 1.0)
        for x, t in zip(parts, (target[:16], target[16:])):
            x.grad = (x.detach() - t) * (0.0 if i < zeros else 0.5)
        if i in missing:
            parts[1].grad = None
        opt.step()
        after.append(torch.cat([x.detach().clone() for x in parts]))
        d.append(opt.param_groups[0]["d"])
    return {"start": flat(p), "target": flat(target), "d": d, "after": [flat(after[i]) for i in (0, 9, 29, 59)]}


with open("prodigy.json", "w") as f:
    json.dump({
        "plain": prodigy(),
        "decay": prodigy(weight_decay=0.1, d0=1e-4),
        "other": prodigy(weight_decay=0.1, d0=1e-3, d_coef=2.0, growth_rate=1.1, beta3=0.99, safeguard_warmup=True, use_bias_correction=True, slice_p=5, lr=0.5),
        "warm-up": prodigy(lrs=(0, 0, 0.5, 1, 0), weight_decay=0.1, d0=1e-3, use_bias_correction=True),
        "pauses": prodigy(lrs=(1, 1, 1, 1, 0), zeros=3, missing=(3, 8, 9), weight_decay=0.1, d0=1e-3, use_bias_correction=True),
    }, f, separators=(",", ":"))
