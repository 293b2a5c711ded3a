"""Makes golden.json: preferences as TRL's DPOTrainer tokenizes them, and how a small model learns them.

Python 3.11, trl 1.16.0, transformers 5.23.0, torch 2.15.0:

    pip install trl==1.16.0 transformers==5.23.0 torch==2.15.0
    python cmd/snug/testdata/dpo/make.py

Each run has the lines of its data file, the tokens of each line's prompt and answers, and of 12 steps of AdamW, each
with 4 pairs in the order of the lines: the loss, the norm of all gradients, and before the step the share of pairs whose
chosen answer is ahead and the mean margin. The model is transformer/testdata/models/llama in float32. The run "smoothed"
has the conservative DPO loss: TRL has it as aot_unpaired with one pair in a micro-batch, which sorts nothing.
"""

import json
import pathlib
import tempfile
import warnings

import torch
import transformers
from datasets import Dataset
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer

here = pathlib.Path(__file__).parent
folder = here.parents[3] / "transformer/testdata/models/llama"
warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
torch.set_num_threads(1)

letters = "abcdefghijklmnopqrstuvwxyz .,?!:<>'"  # as in the tests of package main
vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {c: i + 3 for i, c in enumerate(letters)}
core = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
core.decoder = decoders.Fuse()
core.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", pad_token="</s>")
tokenizer.chat_template = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %} {% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def user(text):
    return {"role": "user", "content": text}


def says(text):
    return {"role": "assistant", "content": text}


words = [letters[i % 26] * (1 + i % 3) for i in range(24)]
strings = [{"prompt": f"say {w}: ", "chosen": f"{w} {w}", "rejected": f"no {w}" if i % 2 else "no"} for i, w in enumerate(words)]
apart = [{"prompt": [user(f"say {w}")], "chosen": [says(f"{w} {w}")], "rejected": [says("no")]} for w in words]
whole = [{"chosen": [user(f"say {w}"), says(w), user("more")] + [says(f"{w} {w}")], "rejected": [user(f"say {w}"), says(w), user("more")] + [says("no")]}
         for w in words]


def run(lines, loss_type="sigmoid", micro=4, **options):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.config.use_cache = False
    config = DPOConfig(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=micro, gradient_accumulation_steps=4 // micro, max_steps=12, learning_rate=2e-3,
        lr_scheduler_type="constant", max_grad_norm=1e9, logging_steps=1, train_sampling_strategy="sequential", loss_type=[loss_type], bf16=False,
        report_to="none", save_strategy="no", disable_tqdm=True, use_cpu=True, gradient_checkpointing=False, max_length=None, **options)
    trainer = DPOTrainer(model=model, args=config, train_dataset=Dataset.from_list(lines), processing_class=tokenizer)
    model.eval()  # no dropout
    trainer.train()
    log = [x for x in trainer.state.log_history if "loss" in x]
    tokens = [[row[name] for name in ("prompt_ids", "chosen_ids", "rejected_ids")] for row in trainer.train_dataset]
    return {
        "lines": [json.dumps(line) for line in lines], "tokens": tokens, "beta": config.beta, "smoothing": config.label_smoothing,
        "loss": [x["loss"] for x in log], "norm": [float(x["grad_norm"]) for x in log],
        "ahead": [x["rewards/accuracies"] for x in log], "margin": [x["rewards/margins"] for x in log],
    }


golden = {
    "strings": run(strings, beta=0.1),
    "messages": run(apart, beta=0.5),
    "messages with their prompt": run(whole, beta=2.0),
    "smoothed": run(strings, "aot_unpaired", 1, beta=1.0, label_smoothing=0.2),
}
(here / "golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
for name, r in golden.items():
    print(name, [round(x, 5) for x in r["loss"]], r["norm"][:3], r["margin"][-1])
