"""Writes scaler.json: what torch.amp.GradScaler, clip_grad_norm_ and
clip_grad_value_ do, step by step, for the tests of package amp. Run it with
torch 2.15.0:

    python make.py > scaler.json
"""

import json
import math
import random

import torch

FINITE, INF, NAN = "finite", "inf", "nan"
VALUE = {FINITE: 1.0, INF: math.inf, NAN: math.nan}


class Counter(torch.optim.Optimizer):
    """An optimizer that counts its steps."""

    def __init__(self, params):
        super().__init__(params, {})
        self.steps = 0

    def step(self):
        self.steps += 1


def run(name, options, events):
    """events are steps: a dict of optimizer to the kind of its gradient, a
    number for update(new_scale), or ["interval", n]."""
    scaler = torch.amp.GradScaler("cpu", **options)
    optimizers, out = {}, []
    for event in events:
        if isinstance(event, list):
            scaler.set_growth_interval(event[1])
            out.append({"interval": event[1]})
            continue
        scale = float(scaler.scale(torch.ones(1)))
        if not isinstance(event, dict):
            scaler.update(float(event))
            state = scaler.state_dict()
            out.append({"to": event, "scale": state["scale"], "tracker": state["_growth_tracker"]})
            continue
        stepped = {}
        for key, kind in event.items():
            if key not in optimizers:
                optimizers[key] = Counter([torch.nn.Parameter(torch.zeros(2))])
            opt = optimizers[key]
            grad = torch.tensor([scale, scale * VALUE[kind]], dtype=torch.float32)
            opt.param_groups[0]["params"][0].grad = grad
            before = opt.steps
            scaler.step(opt)
            stepped[key] = opt.steps > before
        scaler.update()
        state = scaler.state_dict()
        out.append({"grads": event, "stepped": stepped, "scale": state["scale"], "tracker": state["_growth_tracker"]})
    return {"name": name, "options": options, "events": out}


def sequences():
    a = lambda kind: {"a": kind}
    yield run("update_scale", dict(init_scale=4.0, backoff_factor=0.25, growth_interval=2), [a(FINITE), a(FINITE), a(INF)])
    yield run("scale_will_not_overflow", dict(init_scale=1e38, growth_factor=16.0, growth_interval=1), [a(FINITE)] * 3)
    yield run("multiple", dict(init_scale=128.0, growth_interval=1),
              [{"a": FINITE, "b": FINITE}, {"a": FINITE, "b": FINITE}, {"a": INF, "b": FINITE}, {"a": FINITE, "b": FINITE}])
    yield run("update_to", dict(init_scale=8.0, growth_interval=3), [a(FINITE), 32.0, a(FINITE), a(FINITE), a(NAN), 5.0, a(FINITE)])
    yield run("interval raised", dict(init_scale=8.0, growth_interval=2), [a(FINITE), ["interval", 4], a(FINITE), a(FINITE), a(FINITE), a(FINITE)])
    rng = random.Random(1)
    for i in range(20):
        options = dict(
            init_scale=rng.choice([1.0, 3.0, 100.0, 65536.0, 1e38]), growth_factor=rng.choice([1.5, 2.0, 16.0]),
            backoff_factor=rng.choice([0.25, 0.3, 0.5]), growth_interval=rng.randint(1, 4))
        steps = []
        for _ in range(30):
            kinds = [FINITE] * 6 + [INF, NAN]
            steps.append({key: rng.choice(kinds) for key in rng.choice(["a", "b", "ab", "abc"])})
        yield run(f"random {i}", options, steps)


def clips():
    rng = torch.Generator().manual_seed(1)
    for max_norm, scale in [(0.5, 1.0), (3.0, 1024.0), (1e3, 65536.0)]:
        grads = [torch.randn(n, generator=rng) for n in (5, 1, 17)]
        params = [torch.nn.Parameter(torch.zeros_like(g)) for g in grads]
        for p, g in zip(params, grads):
            p.grad = g * scale
        opt = Counter(params)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        scaler.scale(torch.ones(1))
        scaler.unscale_(opt)
        norm = torch.nn.utils.clip_grad_norm_(params, max_norm)
        clipped = [p.grad.tolist() for p in params]
        torch.nn.utils.clip_grad_value_(params, 0.1)
        yield {"max_norm": max_norm, "scale": scale, "grads": [(g * scale).tolist() for g in grads],
               "norm": float(norm), "clipped": clipped, "by_value": [p.grad.tolist() for p in params]}


def penalty(scaled, micros):
    """A regression of 3 weights with a penalty on the gradient's norm, as in
    torch's guide to automatic mixed precision, accumulated over micro-batches."""
    w = torch.nn.Parameter(torch.tensor([0.5, -1.0, 0.25]))
    opt = torch.optim.SGD([w], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0, growth_interval=2, enabled=scaled)
    out = []
    for step in range(4):
        opt.zero_grad()
        for micro in range(micros):
            k = step * micros + micro
            x = torch.tensor([1.0, (k % 3) - 1.0, 0.5 * k])
            loss = (w @ x - 1.0) ** 2
            (g,) = torch.autograd.grad(scaler.scale(loss), w, create_graph=True)
            g = g / scaler.get_scale()
            total = (loss + 0.01 * (g * g).sum().sqrt()) / micros
            scaler.scale(total).backward()
        scaler.step(opt)
        scaler.update()
        out.append(w.tolist())
    return {"scaled": scaled, "micros": micros, "weights": out, "scale": scaler.get_scale()}




print(json.dumps({
    "torch": torch.__version__.split("+")[0],
    "sequences": list(sequences()),
    "clips": list(clips()),
    "penalties": [penalty(s, m) for s in (True, False) for m in (1, 2)],
}, separators=(",", ":"), allow_nan=False))
