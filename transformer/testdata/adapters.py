"""Makes the folder adapters with PEFT and bitsandbytes: adapters of the folder models, what they compute, and how they train.

Python 3.11, peft 0.21.2, bitsandbytes 0.50.2, transformers 5.23.0, torch 2.15.0, safetensors 0.8.0:

    pip install peft==0.21.2 bitsandbytes==0.50.2 transformers==5.23.0 torch==2.15.0 safetensors==0.8.0
    python transformer/testdata/adapters.py              # makes the folder, or the adapters that are named
    python transformer/testdata/adapters.py check DIR    # PEFT loads what Model.SaveAdapter wrote

adapters/NAME has the files of PEFT's save_pretrained, and

golden.safetensors  of the model in float32, its matrices in NF4 where the name says so: the logits of all rows, and the
                    gradient of the loss in each parameter of the adapters, in float16 after division by its largest
                    element, which is "largest/NAME"
golden.json         (both without gradients and losses for adapters of experts) the base in the folder models, the tokens, the labels, and the losses before each of 20 steps of
                    AdamW, and after them

check: SNUG_SAVE=DIR go test -run TestSaveAdapterForPEFT ./transformer writes the folders and their logits.
"""

import json
import pathlib
import shutil
import sys
import warnings

import bitsandbytes
import peft
import torch
import transformers
from peft import LoraConfig, PeftModel, VeraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

import families

here = pathlib.Path(__file__).parent
transformers.logging.set_verbosity_error()
warnings.filterwarnings("ignore")
torch.set_num_threads(1)


def dequantize(a, absmax, block, kind, shape, dtype):
    """What bitsandbytes computes on other devices. Its kernel for AVX-512 is wrong where rows are not whole blocks."""
    codes = torch.stack([a.flatten() >> 4, a.flatten() & 15], 1).flatten().long()
    values = bitsandbytes.functional.get_4bit_type(kind, device="cpu")[codes][:torch.Size(shape).numel()]
    return (values * absmax.repeat_interleave(block)[:len(values)]).reshape(shape).to(dtype)


override = torch.library.Library("bitsandbytes", "IMPL")
override.impl("dequantize_4bit", dequantize, "CPU", allow_override=True)

ADAPTERS = families.table("ADAPTERS")[0]
# Adapters of each matrix of the experts, as PEFT wrote them with transformers 4. With transformers 5 it makes adapters
# of parameters of them, which compute the same and train otherwise. Its conversion of qwen3_moe loses what a layer with
# an MLP has.
EXPERTS = families.table("EXPERTS")[0]
STEPS = 20


def base(name, nf4):
    quantization = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                                      bnb_4bit_compute_dtype=torch.float32) if nf4 else None
    return AutoModelForCausalLM.from_pretrained(here / "models" / name, dtype=torch.float32, attn_implementation="eager",
                                                quantization_config=quantization, device_map="cpu" if nf4 else None)


def make(name, model, nf4, fields):
    torch.manual_seed(sum(map(ord, name)))
    model_name = model
    golden = json.loads((here / "models" / model / "golden.json").read_text())
    tokens = torch.tensor(golden["tokens"]).reshape(golden["sequences"], -1)
    labels = torch.full_like(tokens, -100)
    labels[:, 1:] = torch.tensor(golden["labels"]).reshape(labels.shape)[:, :-1]
    fields = dict(fields)
    config = VeraConfig if fields.pop("vera", False) else LoraConfig
    model = get_peft_model(base(model, nf4), config(task_type="CAUSAL_LM", **fields))
    for key, p in model.named_parameters():
        if "vera_lambda" in key:
            p.data += 0.1 * torch.randn_like(p)
        if "lora_B" in key:
            torch.nn.init.normal_(p, 0, 0.1)
        if "modules_to_save" in key and p.requires_grad:
            p.data += 0.02 * torch.randn_like(p)
        if "lora_magnitude" in key:
            p.data *= 1 + 0.1 * torch.randn_like(p)
    model.train()
    out = here / "adapters" / name
    shutil.rmtree(out, ignore_errors=True)
    model.save_pretrained(out)
    (out / "README.md").unlink(missing_ok=True)
    config = json.loads((out / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = model_name
    if isinstance(config["target_modules"], list):
        config["target_modules"].sort()
    (out / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")

    more = {"token_type_ids": torch.zeros_like(tokens)} if model.config.model_type == "gemma3" else {}
    run = lambda: model(input_ids=tokens, labels=labels, use_cache=False, **more)
    found = run()
    found.loss.backward()
    tensors = {"logits": found.logits.detach().float().contiguous()}
    for key, p in model.named_parameters():
        if p.requires_grad and "vision_tower" not in key:
            key = key.replace("model.language_model.", "model.")  # as the text model has it
            key = key.replace(".default", "").replace("magnitude_vector.weight", "magnitude_vector")  # as save_pretrained does
            key = key.removeprefix("base_model.model.").replace(".modules_to_save", "") if "modules_to_save" in key else key
            largest = p.grad.abs().max()
            tensors[key] = (p.grad / largest).half()
            tensors["largest/" + key] = largest.reshape(1).clone()
    save_file(tensors, out / "golden.safetensors")

    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.01)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = run().loss
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
    losses.append(run().loss.item())
    (out / "golden.json").write_text(json.dumps({
        "peft": peft.__version__, "transformers": transformers.__version__, "torch": torch.__version__.split("+")[0],
        "base": model_name, "nf4": nf4, "sequences": golden["sequences"], "tokens": golden["tokens"], "labels": golden["labels"],
        "losses": losses}) + "\n")
    print(name, losses[0], losses[-1])


def make_experts(name, model_name, targets):
    torch.manual_seed(sum(map(ord, name)))
    out = here / "adapters" / name
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    rank, tensors = 3, {}
    for key, weight in sorted(load_file(here / "models" / model_name / "model.safetensors").items()):
        module = key.removesuffix(".weight")
        if module.rpartition(".")[2] in targets:
            outer, inner = weight.shape
            tensors[f"base_model.model.{module}.lora_A.weight"] = torch.randn(rank, inner) * 0.2
            tensors[f"base_model.model.{module}.lora_B.weight"] = torch.randn(outer, rank) * 0.2
    save_file(tensors, out / "adapter_model.safetensors", metadata={"format": "pt"})
    LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=6, target_modules=targets, base_model_name_or_path=model_name,
               inference_mode=True).save_pretrained(out)
    config = json.loads((out / "adapter_config.json").read_text())
    config["target_modules"].sort()
    (out / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    golden = json.loads((here / "models" / model_name / "golden.json").read_text())
    tokens = torch.tensor(golden["tokens"]).reshape(golden["sequences"], -1)
    model = PeftModel.from_pretrained(base(model_name, False), out)
    logits = model(input_ids=tokens, use_cache=False).logits.detach()
    save_file({"logits": logits.contiguous()}, out / "golden.safetensors")
    (out / "golden.json").write_text(json.dumps({
        "peft": peft.__version__, "transformers": transformers.__version__, "torch": torch.__version__.split("+")[0],
        "base": model_name, "nf4": False, "sequences": golden["sequences"], "tokens": golden["tokens"], "labels": golden["labels"]}) + "\n")
    print(name, len(tensors) // 2, "adapters")


def check(saved):
    for folder in sorted(p for p in pathlib.Path(saved).iterdir() if p.is_dir()):
        golden = json.loads((here / "adapters" / folder.name / "golden.json").read_text())
        model = PeftModel.from_pretrained(base(golden["base"], golden["nf4"]), folder)
        model.train()  # without dropout; in evaluation bitsandbytes wants multiples of 32 rows
        tokens = torch.tensor(golden["tokens"]).reshape(golden["sequences"], -1)
        want = load_file(folder / "logits.safetensors")["logits"]
        more = {"token_type_ids": torch.zeros_like(tokens)} if model.config.model_type == "gemma3" else {}
        have = model(input_ids=tokens, use_cache=False, **more).logits.detach().reshape(want.shape)
        print(folder.name, "logits differ by", ((have - want).abs().max() / want.abs().max()).item(), "of the largest")


if sys.argv[1:2] == ["check"]:
    check(sys.argv[2])
else:
    for name, (model, nf4, fields) in ADAPTERS.items():
        if len(sys.argv) == 1 or name in sys.argv[1:]:
            make(name, model, nf4, fields)
    for name, (model, targets) in EXPERTS.items():
        if len(sys.argv) == 1 or name in sys.argv[1:]:
            make_experts(name, model, targets)
