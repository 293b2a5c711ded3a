"""Makes golden.json: how a small model learns from another one by PyTorch.

Python 3.11, transformers 5.23.0, torch 2.15.0:

    pip install transformers==5.23.0 torch==2.15.0
    python cmd/snug/testdata/distill/make.py

Each run has a teacher of transformer/testdata/models, the share of the divergence, the temperature, and of 12 steps of
AdamW on two sequences each: the tokens, the labels, the loss and the norm of all gradients. The student is the model
llama, and both are float32. Labels of -100 are ignored, by both terms of the loss.
"""

import json
import pathlib

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

here = pathlib.Path(__file__).parent
models = here.parents[3] / "transformer/testdata/models"
torch.set_num_threads(1)


def run(teacher_name, share, temperature):
    generator = torch.Generator().manual_seed(7)
    student = AutoModelForCausalLM.from_pretrained(models / "llama", dtype=torch.float32, attn_implementation="eager").eval()
    teacher = AutoModelForCausalLM.from_pretrained(models / teacher_name, dtype=torch.float32, attn_implementation="eager").eval()
    optimizer = torch.optim.AdamW(student.parameters(), lr=2e-3, weight_decay=0.0)
    steps = []
    for _ in range(12):
        tokens = torch.randint(3, 48, (2, 9), generator=generator)
        labels = torch.randint(3, 48, (2, 9), generator=generator)
        labels[:, :3] = -100
        kept = labels.flatten() != -100
        z = student(tokens).logits.flatten(0, 1)[kept]
        with torch.no_grad():
            q = F.log_softmax(teacher(tokens).logits.flatten(0, 1)[kept] / temperature, -1)
        divergence = F.kl_div(F.log_softmax(z / temperature, -1), q, log_target=True, reduction="batchmean")
        loss = (1 - share) * F.cross_entropy(z, labels.flatten()[kept]) + share * temperature**2 * divergence
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(student.parameters(), 1e9)
        optimizer.step()
        steps.append({"tokens": tokens.flatten().tolist(), "labels": labels.flatten().tolist(), "loss": loss.item(), "norm": norm.item()})
    return {"teacher": teacher_name, "share": share, "temperature": temperature, "steps": steps}


golden = [run("qwen3", 0.5, 2.0), run("gemma2", 1.0, 1.0)]
(here / "golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
for r in golden:
    print(r["teacher"], [round(s["loss"], 5) for s in r["steps"]], [round(s["norm"], 4) for s in r["steps"][:3]])
