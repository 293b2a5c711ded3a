"""Fine-tunes a folder with transformers, PEFT and bitsandbytes and prints one line of JSON: the seconds
of steps, the first loss and resident memory.

The argument is a job as JSON, see tuneJob in tune.go. It is what their users write for little memory:
gradient checkpointing, scaled_dot_product_attention, weights in bfloat16 or in NF4 with double
quantization. All layers' matrices have adapters, which are float32. For all weights the optimizer is
torch's own: its state has the type of the weights. On a CPU it is faster than bitsandbytes' AdamW8bit.
"""

import json
import sys
import time

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig


def resident(name):
    """VmRSS, the resident bytes now; RssFile, those of mapped files; or VmHWM, the most so far."""
    for line in open("/proc/self/status"):
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return 0


def batch(vocabulary, tokens, step):
    """The tokens of snug's batch, which are random."""
    state, ids = step + 1, []
    for _ in range(tokens):
        state = (state * 1664525 + 1013904223) % 2**32
        ids.append((state >> 8) % vocabulary)
    return torch.tensor([ids])


def load(job):
    """Returns the model and what updates it."""
    quantization = None
    if job["method"] == "qlora":
        quantization = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16
        )
    model = AutoModelForCausalLM.from_pretrained(
        job["dir"], dtype=torch.bfloat16, attn_implementation="sdpa", quantization_config=quantization, device_map="cpu"
    )
    model.config.use_cache = False
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if job["method"] == "full":
        model.train()
        return model, torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01)
    for p in model.parameters():
        p.requires_grad_(False)
    adapters = LoraConfig(r=job["rank"], lora_alpha=2 * job["rank"], target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(model, adapters)
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    return model, torch.optim.AdamW(trained, lr=2e-4, weight_decay=0.01)


def main():
    job = json.loads(sys.argv[1])
    torch.set_num_threads(job["threads"])
    torch.manual_seed(1)
    before = resident("VmRSS")
    model, optimizer = load(job)
    report = {"seconds": [], "base_rss_bytes": before, "loaded_rss_bytes": resident("VmRSS")}
    for step in range(job["warm"] + job["steps"]):
        ids = batch(model.config.vocab_size, job["tokens"], step)
        start = time.perf_counter()
        loss = model(input_ids=ids, labels=ids).loss
        report.setdefault("loss", loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step >= job["warm"]:
            report["seconds"].append(time.perf_counter() - start)
    report["peak_rss_bytes"], report["mapped_rss_bytes"] = resident("VmHWM"), resident("RssFile")
    print(json.dumps(report))


main()
