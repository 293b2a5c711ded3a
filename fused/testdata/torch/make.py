# Writes golden.json: both forms of GELU after a bias, and a plain bias, with the gradients
# that PyTorch computes on the CPU. Run with torch 2.15.0:
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
    path.write_text(json.dumps({"torch": torch.__version__, "rows": ROWS, "cols": COLS, "cases": cases}))


if __name__ == "__main__":
    main()
