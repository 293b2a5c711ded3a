"""Makes the folders lora, dora, turned, turned-dora, pissa and converted here with
HuggingFace's PEFT, on the CPU.

Python 3.11, peft 0.21.2, torch 2.15.0, transformers 5.23.0:

    pip install peft==0.21.2 torch==2.15.0 transformers==5.23.0
    python qlora/testdata/peft/make.py

adapter_config.json, adapter_model.safetensors   as PEFT saves an adapter
passes.json   the frozen weight, and a pass in evaluation and one with dropout: inputs,
              output, and the gradients of its product with dy

pissa is an adapter that began by PiSSA, and converted the same as a plain one, with the
weight before PiSSA and the output of the model in passes.json.

Data are base64 of little-endian float32.
"""

import base64
import json
import pathlib
import shutil
import tempfile

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers.pytorch_utils import Conv1D

IN, OUT, ROWS, RANK, DROPOUT = 64, 12, 5, 3, 0.25
SEED, TENSOR = 7, 9
NF4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
       -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
       0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]


def philox(block):
    """The words of a block of Philox4x32-10, as fused.DropoutMask has them."""
    x, k = [block, 0, TENSOR, 0], [SEED, 0]
    for _ in range(10):
        p, q = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        x = [q >> 32 ^ x[1] ^ k[0], q & 0xFFFFFFFF, p >> 32 ^ x[3] ^ k[1], p & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return x


class Drop(nn.Module):
    """Dropout with the mask of the package under test."""

    def forward(self, x):
        words = [w for block in range(x.numel() // 4) for w in philox(block)]
        kept = torch.tensor([0.0 if w < DROPOUT * 2**32 else 1 / (1 - DROPOUT) for w in words])
        return x * kept.view_as(x) if self.training else x


class Model(nn.Module):
    def __init__(self, weight, turned):
        super().__init__()
        if turned:  # as GPT-2 has it, with a bias of 0
            self.up = Conv1D(OUT, IN)
            self.up.weight = nn.Parameter(weight.T.contiguous())
        else:
            self.up = nn.Linear(IN, OUT, bias=False)
            self.up.weight = nn.Parameter(weight)

    def forward(self, x):
        return self.up(x)


def numbers(t):
    return base64.b64encode(t.detach().numpy().astype("<f4").tobytes()).decode()


def run(folder, dora, turned):
    torch.manual_seed(1)
    codes = torch.randint(0, 16, (OUT, IN))
    codes[:, 0] = 15  # a block's largest is 1: 4 bits have the weight exactly
    weight = torch.tensor(NF4)[codes]
    config = LoraConfig(r=RANK, lora_alpha=6, target_modules=["up"], use_dora=dora, use_rslora=True, lora_dropout=DROPOUT,
                        fan_in_fan_out=turned)
    model = get_peft_model(Model(weight, turned), config)
    model.base_model.model.up.lora_dropout["default"] = Drop()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.copy_(torch.randn_like(p) / 4)
            if "magnitude" in name:
                p.mul_(1 + torch.randn_like(p) / 10)
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    passes = {}
    for training in (False, True):
        model.train(training)
        model.zero_grad()
        x, dy = torch.randn(ROWS, IN, requires_grad=True), torch.randn(ROWS, OUT)
        y = model(x)
        (y * dy).sum().backward()
        grads = {name: numbers(p.grad) for name, p in model.named_parameters() if p.grad is not None}
        find = lambda part: next((g for name, g in grads.items() if part in name), "")
        passes["trained" if training else "evaluated"] = {
            "x": numbers(x), "dy": numbers(dy), "y": numbers(y), "dx": numbers(x.grad),
            "a": find("lora_A"), "b": find("lora_B"), "magnitude": find("magnitude")}
    (folder / "passes.json").write_text(json.dumps({"weight": numbers(weight), "passes": passes}) + "\n")


def convert(pissa, converted):
    torch.manual_seed(2)
    codes = torch.randint(0, 16, (OUT, IN))
    codes[:, 0] = 15
    weight = torch.tensor(NF4)[codes]
    config = LoraConfig(r=RANK, lora_alpha=6, target_modules=["up"], init_lora_weights="pissa")
    model = get_peft_model(Model(weight.clone(), False), config)
    with tempfile.TemporaryDirectory() as start:
        model.peft_config["default"].init_lora_weights = True  # as PEFT asks for the state before training
        model.save_pretrained(start)
        model.peft_config["default"].init_lora_weights = "pissa"
        with torch.no_grad():
            for p in model.parameters():
                if p.requires_grad:
                    p.add_(torch.randn_like(p) / 8)
        model.eval()
        x = torch.randn(ROWS, IN)
        y = model(x)
        model.save_pretrained(pissa)
        model.save_pretrained(converted, path_initial_model_for_weight_conversion=start)
    for folder in (pissa, converted):
        (folder / "README.md").unlink(missing_ok=True)
    (converted / "passes.json").write_text(json.dumps({"weight": numbers(weight), "x": numbers(x), "y": numbers(y)}) + "\n")


if __name__ == "__main__":
    here = pathlib.Path(__file__).parent
    for name in ("lora", "dora", "turned", "turned-dora"):
        shutil.rmtree(here / name, ignore_errors=True)
        run(here / name, "dora" in name, "turned" in name)
    convert(here / "pissa", here / "converted")
