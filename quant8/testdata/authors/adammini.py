"""Writes adammini.json: parameters after steps of the authors' package Adam-mini.

    python adammini.py

Made with torch 2.15.0 and adam-mini 1.1.1, on the CPU, in float32.
"""
import json

import adam_mini
import torch

DIM, HEADS, KV, STEPS = 8, 4, 2, 9
NAMES = {
    "embed_tokens.weight": (6, DIM),
    "layers.0.self_attn.q_proj.weight": (DIM, DIM),
    "layers.0.self_attn.q_proj.bias": (DIM,),
    "layers.0.self_attn.k_proj.weight": (DIM // HEADS * KV, DIM),
    "layers.0.self_attn.v_proj.weight": (DIM // HEADS * KV, DIM),
    "layers.0.self_attn.o_proj.weight": (DIM, DIM),
    "layers.0.mlp.up_proj.weight": (12, DIM),
    "layers.0.mlp.down_proj.weight": (DIM, 12),
    "norm.weight": (DIM,),
    "lm_head.weight": (6, DIM),
}


def run(**kw):
    torch.manual_seed(3)
    params = {k: torch.randn(s).mul(100).round().div(100).requires_grad_() for k, s in NAMES.items()}
    opt = adam_mini.Adam_mini(params.items(), lr=1e-2, dim=DIM, n_heads=HEADS, n_kv_heads=KV, verbose=False, **kw)
    start = {k: flat(p) for k, p in params.items()}
    gradients, after = [], []
    for i in range(STEPS):
        for p in params.values():
            p.grad = (torch.randn(p.shape) * (10 if i % 3 else 200)).round().div(100)
        gradients.append({k: flat(p.grad) for k, p in params.items()})
        opt.step()
        if i in (0, 1, STEPS - 1):
            after.append({k: flat(p) for k, p in params.items()})
    moments = {k: flat(opt.state[p]["vmean" if "vmean" in opt.state[p] else "v"]) for k, p in params.items()}
    return {"start": start, "gradients": gradients, "after": after, "moments": moments}


def flat(x):
    return [float("%.8g" % v) for v in x.detach().flatten()]


with open("adammini.json", "w") as f:
    json.dump({"plain": run(), "decay": run(weight_decay=0.1, betas=(0.8, 0.95), eps=1e-3)}, f, separators=(",", ":"))
