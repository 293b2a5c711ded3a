# Writes golden.json: both forms of GELU after a bias, and a plain bias, with the gradients
# that PyTorch computes on the CPU; the cross-entropy of a linear layer, with a cap of its
# output, weights of rows, a bias, a temperature, label smoothing and z-loss; log-probabilities of
# targets, and the divergence from another layer. Run with torch 2.15.0:
#
#   python3 fused/testdata/torch/make.py
import json
import pathlib

import torch
import torch.nn.functional as F

ROWS, COLS = 40, 7
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
FORMS = {
    "add": lambda z: z,
    "tanh": lambda z: F.gelu(z, approximate="tanh"),
    "erf": F.gelu,
}


def tensor(number, n, scale, dtype):
    """Numbers from -scale to scale that the test makes too."""
    x = (torch.arange(n, dtype=torch.int64) * 2654435761 + number * 97531) % 2**32
    return ((x.double() / 2**31 - 1) * scale).to(dtype)


def numbers(t):
    return [float("%.9g" % x) for x in t.detach().double().flatten().tolist()]


HEAD_ROWS, HEAD_VOCAB, HEAD_COLS, SCALE = 6, 11, 5, 0.5


def layer(number, rows, vocab, cols, cap=0.0, temperature=1.0, bias=False):
    """The parameters of a linear layer, as leaves, and its logits."""
    leaf = lambda n, *shape: tensor(n, torch.Size(shape).numel(), 2, torch.float32).reshape(shape).requires_grad_()
    x, w, b = leaf(number, rows, cols), leaf(number + 1, vocab, cols), leaf(number + 2, vocab)
    logits = F.linear(x, w, b if bias else None)
    if cap:
        logits = torch.tanh(logits / cap) * cap
    return x, w, b, logits / temperature


def gradients(x, w, b):
    return {"dx": numbers(x.grad), "dw": numbers(w.grad), "dbias": None if b.grad is None else numbers(b.grad)}


def head(cap, weighted, temperature=1.0, bias=False, smoothing=0.0, zloss=0.0):
    """The loss is 0.5 times the sum over rows, as transformers caps logits in Gemma 2."""
    x, w, b, logits = layer(4, HEAD_ROWS, HEAD_VOCAB, HEAD_COLS, cap, temperature, bias)
    targets = torch.tensor([3, 10, -100, 0, 7, 3])
    weights = torch.tensor([1.0, 0.25, 2.0, 3.0, 0.0, 0.5] if weighted else [1.0] * HEAD_ROWS)
    losses = F.cross_entropy(logits, targets, reduction="none", ignore_index=-100, label_smoothing=smoothing)
    losses = losses + zloss * logits.logsumexp(1) ** 2 * (targets >= 0)
    loss = (losses * weights).sum()
    (SCALE * loss).backward()
    return {"cap": cap, "temperature": temperature, "bias": bias, "smoothing": smoothing, "zloss": zloss, "targets": targets.tolist(),
            "weights": weights.tolist() if weighted else None, "loss": loss.item()} | gradients(x, w, b)


def probs(cap, temperature, bias):
    """log_softmax and gather of three targets a row, and any derivatives of them and of logsumexp."""
    x, w, b, logits = layer(4, HEAD_ROWS, HEAD_VOCAB, HEAD_COLS, cap, temperature, bias)
    targets = (torch.arange(3 * HEAD_ROWS) * 7 % HEAD_VOCAB).reshape(HEAD_ROWS, 3)
    logp, lse = F.log_softmax(logits, 1).gather(1, targets), logits.logsumexp(1)
    dlogp, dlse = tensor(8, 3 * HEAD_ROWS, 1, torch.float32).reshape(HEAD_ROWS, 3), tensor(9, HEAD_ROWS, 1, torch.float32)
    ((logp * dlogp).sum() + (lse * dlse).sum()).backward()
    return {"cap": cap, "temperature": temperature, "bias": bias, "targets": targets.flatten().tolist(), "logp": numbers(logp),
            "lse": numbers(lse)} | gradients(x, w, b)


def divergence(cap, temperature, bias):
    """kl_div of a teacher with 3 columns, 0.5 times the sum over rows."""
    x, w, b, logits = layer(4, HEAD_ROWS, HEAD_VOCAB, HEAD_COLS, cap, temperature, bias)
    *_, teacher = layer(10, HEAD_ROWS, HEAD_VOCAB, 3, 0.0, temperature, bias)
    loss = F.kl_div(F.log_softmax(logits, 1), F.log_softmax(teacher.detach(), 1), log_target=True, reduction="sum")
    (SCALE * loss).backward()
    return {"cap": cap, "temperature": temperature, "bias": bias, "loss": loss.item()} | gradients(x, w, b)


def main():
    cases = []
    for name, dtype in DTYPES.items():
        for form, f in FORMS.items():
            x = tensor(1, ROWS * COLS, 6, dtype).reshape(ROWS, COLS).requires_grad_()
            bias = tensor(2, COLS, 1, dtype).requires_grad_()
            dy = tensor(3, ROWS * COLS, 2, dtype).reshape(ROWS, COLS)
            out = f(x + bias)
            out.backward(dy)
            cases.append({"form": form, "dtype": name, "out": numbers(out), "dx": numbers(x.grad), "dbias": numbers(bias.grad)})
    path = pathlib.Path(__file__).parent / "golden.json"
    heads = [head(cap, weighted) for cap in (0.0, 3.0) for weighted in (False, True)]
    heads += [head(cap, True, temperature, True, 0.1, 0.01) for cap in (0.0, 3.0) for temperature in (1.0, 2.0)]
    kinds = [(0.0, 1.0, False), (0.0, 2.0, True), (3.0, 0.5, True)]
    path.write_text(json.dumps({
        "torch": torch.__version__, "rows": ROWS, "cols": COLS, "cases": cases, "heads": heads,
        "probs": [probs(*k) for k in kinds], "divergences": [divergence(*k) for k in kinds],
    }))


if __name__ == "__main__":
    main()
