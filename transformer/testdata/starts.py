"""Makes starts.json here with PEFT: how adapters train that begin by their matrix, and at two learning rates (LoRA+).

Python 3.11, peft 0.21.2, bitsandbytes 0.50.2, transformers 5.23.0, torch 2.15.0, safetensors 0.8.0:

    python transformer/testdata/starts.py              # makes the file
    python transformer/testdata/starts.py check DIR    # PEFT loads what Model.SaveAdapter wrote

A case has the base in the folder models, the fields of the config, and frozen_a where A does not train (LoRA-FA), the losses before each of 20 steps of AdamW, and
after them. loraplus begins with the folder adapters/llama_lora.

check: SNUG_SAVE=DIR go test -run TestStartsAgainstPEFT ./transformer writes the folders after these steps, with logits.
The base of check is the published one, in NF4 where that of the case is.
"""

import json
import pathlib
import sys

sys.argv, arguments = sys.argv[:1] + ["none"], sys.argv[1:]  # adapters.py makes nothing
import adapters
import bitsandbytes
import torch
from peft import LoraConfig, PeftModel, get_peft_model, replace_lora_weights_loftq
from peft.optimizers import create_loraplus_optimizer
from peft.utils import loftq_utils
from safetensors.torch import load_file

here = pathlib.Path(__file__).parent
ALL = {"target_modules": "all-linear", "r": 4, "lora_alpha": 8}
CASES = {
    "llama_pissa": ("llama", False, {**ALL, "init_lora_weights": "pissa"}),
    "llama_pissa_rslora": ("llama", False, {"target_modules": ["q_proj", "down_proj"], "r": 3, "lora_alpha": 6, "use_rslora": True, "init_lora_weights": "pissa"}),
    "gpt2_pissa": ("gpt2", False, {**ALL, "fan_in_fan_out": True, "init_lora_weights": "pissa"}),
    "llama_olora": ("llama", False, {**ALL, "lora_alpha": 2, "rank_pattern": {"v_proj": 3}, "alpha_pattern": {"v_proj": 3}, "init_lora_weights": "olora"}),
    "gemma3_olora": ("gemma3", False, {**ALL, "lora_alpha": 2, "init_lora_weights": "olora"}),
    "llama_saved": ("llama", False, {**ALL, "lora_alpha": 2, "init_lora_weights": "olora", "modules_to_save": ["embed_tokens", "lm_head", "norm"]}),
    "qwen2_saved": ("qwen2", False, {**ALL, "lora_alpha": 2, "init_lora_weights": "olora", "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}),
    "gpt2_saved": ("gpt2", False, {**ALL, "fan_in_fan_out": True, "init_lora_weights": "pissa", "modules_to_save": ["wpe", "ln_1", "ln_f"]}),
    "llama_frozen": ("llama", False, {**ALL, "lora_alpha": 2, "init_lora_weights": "olora", "frozen_a": True}),
    "llama_loftq": ("llama", True, {**ALL, "lora_alpha": 4, "init_lora_weights": "loftq"}),
}
STEPS = 20


def data(base):
    golden = json.loads((here / "models" / base / "golden.json").read_text())
    tokens = torch.tensor(golden["tokens"]).reshape(golden["sequences"], -1)
    labels = torch.full_like(tokens, -100)
    labels[:, 1:] = torch.tensor(golden["labels"]).reshape(labels.shape)[:, :-1]
    return tokens, labels


def run(model, base):
    tokens, labels = data(base)
    more = {"token_type_ids": torch.zeros_like(tokens)} if model.config.model_type == "gemma3" else {}
    return model(input_ids=tokens, labels=labels, use_cache=False, **more)


def train(model, base, optimizer):
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = run(model, base).loss
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
    return losses + [run(model, base).loss.item()]


def on_cpu(to):
    """loftq_utils moves weights to a GPU."""
    return lambda self, *args, **kw: to(self, *("cpu" if a == "cuda" else a for a in args), **{k: "cpu" if v == "cuda" else v for k, v in kw.items()})


def make():
    out = {}
    for name, (base, nf4, fields) in CASES.items():
        torch.manual_seed(1)
        config = {k: v for k, v in fields.items() if k != "frozen_a" and (nf4 is False or k != "init_lora_weights")}
        model = get_peft_model(adapters.base(base, nf4), LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **config))
        if nf4:
            plain, torch.Tensor.to = torch.Tensor.to, on_cpu(torch.Tensor.to)
            loftq_utils.clear_device_cache = lambda: None
            replace_lora_weights_loftq(model, str(here / "models" / base))
            torch.Tensor.to = plain
        for key, p in model.named_parameters():
            if "lora_A" in key:
                p.requires_grad = not fields.get("frozen_a", False)
        model.train()
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.01)
        fields = {k: sorted(v) if isinstance(v, set) else v for k, v in fields.items()}
        out[name] = {"base": base, "nf4": nf4, "fields": fields, "losses": train(model, base, optimizer)}
        print(name, out[name]["losses"][0], out[name]["losses"][-1])
    model = PeftModel.from_pretrained(adapters.base("llama", False), here / "adapters" / "llama_lora", is_trainable=True)
    optimizer = create_loraplus_optimizer(model, torch.optim.AdamW, lr=1e-3, loraplus_lr_ratio=16)
    model.train()
    out["loraplus"] = {"base": "llama", "nf4": False, "fields": {}, "losses": train(model, "llama", optimizer)}
    (here / "starts.json").write_text(json.dumps(out) + "\n")


def check(saved):
    cases = json.loads((here / "starts.json").read_text())
    for folder in sorted(p for p in pathlib.Path(saved).iterdir() if p.is_dir()):
        case = cases[folder.name]
        model = PeftModel.from_pretrained(adapters.base(case["base"], case["nf4"]), folder)
        model.train()  # without dropout; in evaluation bitsandbytes wants multiples of 32 rows
        want = load_file(folder / "logits.safetensors")["logits"]
        have = run(model, case["base"]).logits.detach().reshape(want.shape)
        print(folder.name, "logits differ by", ((have - want).abs().max() / want.abs().max()).item(), "of the largest")


if arguments[:1] == ["check"]:
    check(arguments[1])
else:
    make()
