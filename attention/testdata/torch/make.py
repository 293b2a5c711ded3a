# Writes golden.json: attention and its gradients as PyTorch computes them on the CPU, by
# scaled_dot_product_attention and by flex_attention, which has no gradients on the CPU: they
# are those of its definition. Run with torch 2.15.0:
#
#   python3 attention/testdata/torch/make.py
import json
import math
import pathlib
import warnings

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

warnings.filterwarnings("ignore")
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
BATCH, HEADS, DIM = 2, 2, 5


def tensor(number, shape, dtype):
    """Numbers from -2 to 2 that the test makes too."""
    n = math.prod(shape)
    x = (torch.arange(n, dtype=torch.int64) * 2654435761 + number * 97531) % 2**32
    return (x.double() / 2**30 - 2).reshape(shape).to(dtype)


def grads(leaves, out, dout, lse=None):
    for x in leaves.values():
        x.grad = None
    loss = (out * dout).sum() if lse is None else (out * dout).sum() + lse.sum()
    loss.backward()
    return {"d" + name: x.grad for name, x in leaves.items()}


def numbers(t):
    return [float("%.9g" % x) for x in t.detach().double().flatten().tolist()]


def leaves(dtype, kv, queries, keys, dim=DIM, **more):
    shapes = {"q": (BATCH, HEADS, queries, dim), "k": (BATCH, kv, keys, dim), "v": (BATCH, kv, keys, dim)}
    shapes.update(more)
    return {name: tensor(i + 1, shape, dtype).requires_grad_() for i, (name, shape) in enumerate(shapes.items())}


def case(name, dtype, x, out, lse=None, **config):
    dout = tensor(9, out.shape, DTYPES[dtype])
    result = {"out": out, **grads(x, out, dout, lse)}
    if lse is not None:
        result["lse"] = lse
    return {
        "name": name, "dtype": dtype, "kv": x["k"].shape[1], "queries": x["q"].shape[2], "keys": x["k"].shape[2],
        "config": config, "results": {k: numbers(v) for k, v in result.items()},
    }


def sdpa(dtype, queries, keys, kv=HEADS, causal=False, bias=None, dim=DIM):
    more = {} if bias is None else {"bias": bias}
    x = leaves(DTYPES[dtype], kv, queries, keys, dim, **more)
    out = F.scaled_dot_product_attention(x["q"], x["k"], x["v"], attn_mask=x.get("bias"), is_causal=causal, enable_gqa=kv != HEADS)
    c = case("sdpa", dtype, x, out, causal=causal, bias=list(bias or []))
    if dim != DIM:  # the gradient in the bias is what long rows spoil, and the file stays small
        c["dim"], c["results"] = dim, {"dbias": c["results"]["dbias"]}
    return c


def flex(name, queries, keys, kv=HEADS, score=None, mask=None, **config):
    x = leaves(torch.float32, kv, queries, keys)
    block = create_block_mask(mask, BATCH, HEADS, queries, keys, device="cpu") if mask else None
    fixed = {name: t.detach() for name, t in x.items()}
    out, lse = flex_attention(fixed["q"], fixed["k"], fixed["v"], score_mod=score, block_mask=block,
                              enable_gqa=kv != HEADS, return_lse=True)
    index = torch.meshgrid(*(torch.arange(n) for n in (BATCH, HEADS, queries, keys)), indexing="ij")
    k, v = (x[n].repeat_interleave(HEADS // kv, 1) for n in "kv")
    s = x["q"] @ k.transpose(-1, -2) / math.sqrt(DIM)
    s = s if score is None else score(s, *index)
    s = s if mask is None else s.masked_fill(~mask(*index), -math.inf)
    out2, lse2 = torch.softmax(s, -1) @ v, torch.logsumexp(s, -1)
    torch.testing.assert_close(out2, out, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(lse2, lse, rtol=1e-5, atol=1e-6)
    return case(name, "f32", x, out2, lse2, **config)


def main():
    torch.manual_seed(0)
    slopes = torch.tensor([2.0 ** -(h + 1) for h in range(HEADS)])
    documents = torch.tensor([i // 5 for i in range(64)])
    cases = []
    for dtype in DTYPES:
        cases += [
            sdpa(dtype, 17, 23),
            sdpa(dtype, 19, 19, causal=True),
            sdpa(dtype, 13, 21, kv=1),
            sdpa(dtype, 11, 14, bias=(1, HEADS, 11, 14)),
            sdpa(dtype, 9, 12, bias=(BATCH, 1, 1, 12)),
            sdpa(dtype, 11, 14, bias=(1, HEADS, 11, 14), dim=512),
            sdpa(dtype, 9, 12, bias=(BATCH, 1, 1, 12), dim=512),
            sdpa(dtype, 40, 3, bias=(1, 1, 1, 3), dim=512),
        ]
    cases += [
        flex("plain", 17, 23),
        flex("softcap", 17, 23, score=lambda s, b, h, i, j: 1.5 * torch.tanh(s / 1.5)),
        flex("alibi", 16, 16, kv=1, score=lambda s, b, h, i, j: s - slopes[h] * (i - j).abs()),
        flex("window", 20, 20, mask=lambda b, h, i, j: (i - j <= 4) & (j - i <= 2)),
        flex("documents", 23, 23, mask=lambda b, h, i, j: (documents[i] == documents[j]) & (j <= i)),
        flex("score", 15, 18, score=lambda s, b, h, i, j: torch.sin(s) * (1 + 0.125 * h)),
    ]
    path = pathlib.Path(__file__).parent / "golden.json"
    path.write_text(json.dumps({"torch": torch.__version__, "cases": cases}))


if __name__ == "__main__":
    main()
