"""Trains the GPT of examples/gpt with PyTorch and prints one line of JSON:
tokens a second and the process's peak resident memory.

It is what a PyTorch user would write for speed: bfloat16 autocast,
scaled_dot_product_attention, fused AdamW, and torch.compile with --compile.
The first step, which compiles and allocates, is not timed.
"""

import argparse
import json
import resource
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x):
        batch, length, dim = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).reshape(batch, length, dim))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.table, self.places = nn.Embedding(o.vocab, o.dim), nn.Embedding(o.context, o.dim)
        self.blocks = nn.ModuleList(Block(o.dim, o.heads) for _ in range(o.layers))
        self.norm = nn.LayerNorm(o.dim)
        for w in self.parameters():
            if w.dim() == 2:
                nn.init.normal_(w, std=0.02)

    def forward(self, tokens, targets):
        x = self.table(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.table.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def step(model, optimizer, o):
    """One optimizer step over all micro-batches."""
    for _ in range(o.micros):
        tokens = torch.randint(o.vocab, (o.sequences, o.context + 1), device=o.device)
        with torch.autocast(tokens.device.type, dtype=torch.bfloat16):
            loss = model(tokens[:, :-1], tokens[:, 1:].reshape(-1))
        (loss / o.micros).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def wait(o):
    """Until a GPU has done its work."""
    if o.device != "cpu":
        torch.cuda.synchronize(o.device)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in {
        "threads": torch.get_num_threads(), "steps": 4, "vocab": 16384, "dim": 512, "layers": 8, "heads": 8,
        "context": 512, "sequences": 2, "micros": 4,
    }.items():
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", default="cpu", help="cpu or such as cuda:0")
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    torch.manual_seed(1)

    model = GPT(o).to(o.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, fused=True)
    run = torch.compile(model) if o.compile else model
    step(run, optimizer, o)
    wait(o)
    start = time.perf_counter()
    for _ in range(o.steps):
        step(run, optimizer, o)
    wait(o)
    seconds = time.perf_counter() - start

    unit = 1 if sys.platform == "darwin" else 1024
    print(json.dumps({
        "tokens_per_s": o.steps * o.micros * o.sequences * o.context / seconds,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
        "parameters": sum(p.numel() for p in model.parameters()),
        "torch": torch.__version__,
        "compiled": o.compile,
    }))


main()
