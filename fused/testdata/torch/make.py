# Writes golden.json: both forms of GELU after a bias, and a plain bias, with the gradients
# that PyTorch computes on the CPU; and the cross-entropy of a linear layer, with a cap of its
# output and weights of rows. Run with torch 2.15.0:
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


def head(cap, weighted):
    """The loss is 0.5 times the sum over rows, as transformers caps logits in Gemma 2."""
    x = tensor(4, HEAD_ROWS * HEAD_COLS, 2, torch.float32).reshape(HEAD_ROWS, HEAD_COLS).requires_grad_()
    w = tensor(5, HEAD_VOCAB * HEAD_COLS, 2, torch.float32).reshape(HEAD_VOCAB, HEAD_COLS).requires_grad_()
    targets = torch.tensor([3, 10, -100, 0, 7, 3])
    weights = torch.tensor([1.0, 0.25, 2.0, 3.0, 0.0, 0.5] if weighted else [1.0] * HEAD_ROWS)
    logits = x @ w.T
    if cap:
        logits = torch.tanh(logits / cap) * cap
    loss = (F.cross_entropy(logits, targets, reduction="none", ignore_index=-100) * weights).sum()
    (SCALE * loss).backward()
    return {"cap": cap, "targets": targets.tolist(), "weights": weights.tolist() if weighted else None, "loss": loss.item(),
            "dx": numbers(x.grad), "dw": numbers(w.grad)}


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
    path.write_text(json.dumps({"torch": torch.__version__, "rows": ROWS, "cols": COLS, "cases": cases, "heads": heads}))


if __name__ == "__main__":
    main()
