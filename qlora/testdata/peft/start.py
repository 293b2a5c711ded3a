"""Makes start.json here: the first values of adapters that HuggingFace's PEFT makes of their matrix.

Python 3.11, peft 0.21.2, bitsandbytes 0.50.2, torch 2.15.0, transformers 5.23.0:

    pip install peft==0.21.2 bitsandbytes==0.50.2 torch==2.15.0 transformers==5.23.0
    python qlora/testdata/peft/start.py                  # makes the file
    python qlora/testdata/peft/start.py check DIR        # PEFT loads what SaveAdapters wrote of these adapters

A case has init_lora_weights, the shape, rank, scale, the matrix, the product B·A, and what is left of the matrix: with
loftq the elements that its 4 bits have. Data are base64 of little-endian float32.

check: SNUG_SAVE=DIR go test -run TestStartForPEFT ./qlora writes a folder for each case, with inputs and outputs.
"""

import base64
import json
import pathlib
import sys

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils import loftq_utils
from safetensors.torch import load_file
from torch import nn

here = pathlib.Path(__file__).parent
CASES = [
    ("pissa", 24, 40, 5, {"lora_alpha": 10}),
    ("pissa", 40, 24, 3, {"lora_alpha": 4, "use_rslora": True}),
    ("pissa", 16, 16, 16, {"lora_alpha": 16}),
    ("olora", 24, 40, 5, {"lora_alpha": 10}),
    ("olora", 40, 24, 3, {"lora_alpha": 4, "use_rslora": True}),
    ("loftq", 32, 64, 4, {"lora_alpha": 4, "iterations": 1}),
    ("loftq", 64, 128, 6, {"lora_alpha": 6, "iterations": 4}),
]


class Model(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.up = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        self.up.weight = nn.Parameter(weight.clone())

    def forward(self, x):
        return self.up(x)


def numbers(t):
    return base64.b64encode(t.detach().contiguous().numpy().astype("<f4").tobytes()).decode()


def tensor(text, *shape):
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.float32).reshape(shape)


def on_cpu(to):
    """loftq_utils moves weights to a GPU."""
    return lambda self, *args, **kw: to(self, *("cpu" if a == "cuda" else a for a in args), **{k: "cpu" if v == "cuda" else v for k, v in kw.items()})


def matrix(number, out, inner):
    torch.manual_seed(number)
    u, _, v = torch.linalg.svd(torch.randn(out, inner), full_matrices=False)
    values = 0.75 ** torch.arange(len(v), dtype=torch.float32)  # apart, so that each has one direction
    return (u * values) @ v + 0.001 * torch.randn(out, inner)


def make():
    import bitsandbytes as bnb

    torch.Tensor.to, bnb.nn.Params4bit.to = on_cpu(torch.Tensor.to), on_cpu(bnb.nn.Params4bit.to)
    loftq_utils.clear_device_cache = lambda: None
    cases = []
    for number, (init, out, inner, rank, more) in enumerate(CASES):
        weight = matrix(number, out, inner)
        if init == "loftq":
            left, a, b = loftq_utils.loftq_init(weight, 4, rank, more["iterations"])
        else:
            up = get_peft_model(Model(weight), LoraConfig(r=rank, target_modules=["up"], init_lora_weights=init, **more)).base_model.model.up
            left, a, b = up.base_layer.weight, up.lora_A["default"].weight, up.lora_B["default"].weight
        cases.append({"init": init, "out": out, "in": inner, "rank": rank, "alpha": more["lora_alpha"], "rslora": more.get("use_rslora", False),
                      "iterations": more.get("iterations", 0), "weight": numbers(weight), "product": numbers(b @ a), "left": numbers(left)})
    (here / "start.json").write_text(json.dumps(cases) + "\n")


def check(saved):
    for number, case in enumerate(json.loads((here / "start.json").read_text())):
        folder = pathlib.Path(saved) / str(number)
        if not folder.exists():
            continue
        model = PeftModel.from_pretrained(Model(tensor(case["weight"], case["out"], case["in"])), folder)
        data = load_file(folder / "outputs.safetensors")
        have = model(data["x"])
        print(case["init"], "outputs differ by", ((have - data["y"]).abs().max() / data["y"].abs().max()).item(), "of the largest")


if sys.argv[1:2] == ["check"]:
    check(sys.argv[2])
else:
    make()
