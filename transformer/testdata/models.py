"""Makes the folder models with transformers: small models, what they compute, and how they train.

Python 3.11, transformers 5.24.0 (golden.json names the one that made a model), torch 2.15.0, safetensors 0.8.0:

    pip install transformers==5.24.0 torch==2.15.0 safetensors==0.8.0
    python transformer/testdata/models.py              # makes the folder, or the models that are named
    python transformer/testdata/models.py check DIR    # transformers loads what Model.Save wrote
    python transformer/testdata/models.py vary DIR COUNT [NAME ...]    # as many models of each kind with random sizes and fields, below DIR

models/NAME has the files of save_pretrained in bfloat16 (gemma3_images of the whole model, whose text part the golden files
are about, with the names of a model of text), and

golden.safetensors  of the model in float32: the logits of all rows, and the gradient of the loss in each parameter,
                    in float16 after division by its largest element, which is "largest/NAME"
golden.json         the tokens, the labels, and the losses before each of 20 steps of AdamW, and after them

A gradient in a tensor of all experts is one for each expert and part. Routers choose by a margin, so that a model in 16
bits chooses the same experts. gpt_oss_mxfp4 has its experts in MXFP4, as openai/gpt-oss-20b does; they do not train.

check: SNUG_SAVE=DIR go test -run TestSaveForTransformers ./transformer writes the folders and their logits.
vary: SNUG_VARIED=DIR go test -v -run TestVariedModels ./transformer compares them, and saves them for models.py check DIR/saved.
"""

import copy
import json
import pathlib
import random
import shutil
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from transformers.integrations.mxfp4 import FP4_VALUES, convert_moe_packed_tensors
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import families

here = pathlib.Path(__file__).parent / "models"
transformers.logging.set_verbosity_error()
torch.set_num_threads(1)

MODELS, FAMILY = families.table("MODELS")
ROWS, TOKENS, STEPS = 2, 20, 20


def pack(weights):
    """MXFP4 of [experts, in, out]: blocks [experts, out, in/32, 16], with the first of two elements in the lower half, and scales."""
    x = weights.transpose(1, 2).reshape(weights.shape[0], weights.shape[2], -1, 32)
    exponents = (x.abs().amax(dim=-1, keepdim=True).log2().floor() - 2).clamp(-127, 127)
    codes = (x / exponents.exp2()).unsqueeze(-1).sub(torch.tensor(FP4_VALUES)).abs().argmin(dim=-1).to(torch.uint8)
    return (codes[..., 0::2] | codes[..., 1::2] << 4).contiguous(), (exponents[..., 0] + 127).to(torch.uint8)


def make_mxfp4(model, folder):
    """Replaces the experts in a folder, and in the model by what transformers decodes."""
    tensors = load_file(folder / "model.safetensors")
    for key, p in model.named_parameters():
        if key.endswith(("gate_up_proj", "down_proj")):
            blocks, scales = pack(p.data)
            tensors[key + "_blocks"], tensors[key + "_scales"] = blocks, scales
            p.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
            p.requires_grad = False
            del tensors[key]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def make(name, family, fields, again=0, into=here):
    torch.manual_seed(sum(map(ord, name)) + 1000 * again)
    config = AutoConfig.for_model(family, **fields)
    whole = families.hook(family, "WHOLE") if hasattr(config, "text_config") else None
    if images := whole is not None:
        model, config = getattr(transformers, whole)._from_config(config, attn_implementation="eager").float(), config.text_config
    else:
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    initial = families.hook(family, "initial")
    with torch.no_grad():
        for key, p in model.named_parameters():
            if initial and initial(key, p):
                pass
            elif key.endswith(("mlp.gate.weight", "router.weight")):
                p.normal_(0, 0.6)
            elif p.dim() == 3:
                p.normal_(0, 0.2)
            elif p.dim() == 2 and "_bias" not in key:
                p.normal_(0, 0.5 if "embed" in key or "wte" in key else 0.12)
            elif key.endswith("bias"):
                p.normal_(0, 0.2)
            else:
                p.normal_(1, 0.3)
            p.copy_(p.bfloat16().float())
        for key, p in model.named_buffers():
            if key.endswith("layer_scalar"):
                p.uniform_(0.5, 1.5)
                p.copy_(p.bfloat16().float())
            if key.endswith("e_score_correction_bias"):
                p.uniform_(-0.3, 0.3)
                p.copy_(p.bfloat16().float())
    folder = into / name
    shutil.rmtree(folder, ignore_errors=True)
    low = copy.deepcopy(model).bfloat16()
    low.save_pretrained(folder, max_shard_size="20KB" if name == "llama" else "5GB")
    (folder / "generation_config.json").unlink(missing_ok=True)
    if "mxfp4" in name:
        with torch.no_grad():
            make_mxfp4(model, folder)
    model.train()

    tokens = torch.randint(0, config.vocab_size - (4 if images else 0), (ROWS, TOKENS))
    labels = tokens.clone()
    labels[0, 3] = labels[1, 11] = -100
    clear = families.hook(config.model_type, "clear")
    if clear and not clear(model, config, tokens):
        assert again < 60, "no margin"
        return make(name, family, fields, again + 1, into)
    more = {"use_cache": False, **({"token_type_ids": torch.zeros_like(tokens)} if family == "gemma3" else {})}
    out = model(tokens, labels=labels, **more)
    out.loss.backward()
    golden = {"logits": out.logits.detach().contiguous()}
    for key, p in model.named_parameters():
        if p.grad is None:
            assert images and "language_model" not in key or not p.requires_grad, key
            continue
        for key, grad in families.parts(config, key.replace("model.language_model.", "model."), p.grad):
            largest = grad.abs().max().clamp(min=1e-30)
            golden[key] = (grad / largest).half()
            golden["largest/" + key] = largest.reshape(1).clone()
    save_file(golden, folder / "golden.safetensors")

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(tokens, labels=labels, **more).loss
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
    if getattr(config, "output_router_logits", False):  # an evaluation has the plain loss
        more["output_router_logits"] = False
    losses.append(model(tokens, labels=labels, **more).loss.item())
    moved = torch.full_like(labels, -100)
    moved[:, :-1] = labels[:, 1:]
    (folder / "golden.json").write_text(json.dumps({
        "transformers": transformers.__version__, "torch": torch.__version__.split("+")[0],
        "sequences": ROWS, "tokens": tokens.flatten().tolist(), "labels": moved.flatten().tolist(), "losses": losses}) + "\n")
    print(name, again, sum(p.numel() for p in model.parameters()), "parameters", losses[0], losses[-1])


def varied(family, fields, rng):
    """Fields with other sizes, and with other values of what is true or false."""
    fields = copy.deepcopy(fields)
    text = fields.get("text_config", fields)
    kind = text.get("model_type", family)
    new = {"vocab_size": rng.randint(40, 70), "intermediate_size": 4 * rng.randint(5, 12), "initializer_range": 0.02}
    heads = rng.choice([1, 2, 3, 4, 6])
    wide = 4 * heads * max(1, rng.randint(8, 48) // (4 * heads))  # products of experts want multiples of 16 bytes
    fixed = [k for k, v in text.items() if isinstance(v, dict) and any("factor" in x or "section" in x for x in v)]  # lists of factors have the length of a head
    if "head_dim" in text and not fixed:
        new |= {"head_dim": 2 * rng.randint(2, 8), "hidden_size": wide}
    elif "kv_lora_rank" in text:
        new |= {"kv_lora_rank": 2 * rng.randint(2, 7), "qk_rope_head_dim": 2 * rng.randint(1, 4), "qk_nope_head_dim": 2 * rng.randint(1, 5), "v_head_dim": 2 * rng.randint(1, 6),
                "hidden_size": wide}
    elif "hidden_size" in text and not fixed:
        new["hidden_size"] = wide
    else:
        heads = text.get("num_attention_heads", 0)
    if "num_attention_heads" in text:
        new["num_attention_heads"] = heads
    if "num_key_value_heads" in text:
        new["num_key_value_heads"] = heads if "kv_lora_rank" in text else rng.choice([h for h in range(1, heads + 1) if heads % h == 0])
    if not any(isinstance(v, list) for v in text.values()) and "num_hidden_layers" in text:
        new["num_hidden_layers"] = rng.randint(1, 3)
    if text.get("sliding_window"):
        new["sliding_window"] = rng.randint(2, 25)  # the cache of transformers keeps all rows of a window of 1
    if kind == family and text is not fields:
        return fields  # of a whole model
    for name in json.loads((here.parent / "fields" / f"{kind}.json").read_text())["changes"]:
        field = getattr(CONFIG_MAPPING[kind], "__dataclass_fields__", {}).get(name)
        if isinstance(text.get(name, field and field.default), bool) and name not in ("is_causal", "is_decoder", "is_encoder_decoder", "output_router_logits") and rng.random() < 0.5:
            new[name] = rng.random() < 0.5
        elif name.endswith(("norm_eps", "norm_epsilon", "layernorm_eps")) and rng.random() < 0.5:
            new[name] = rng.choice([1e-5, 1e-3, 0.02])
    text.update({k: v for k, v in new.items() if k not in fields or text is fields or k != "tie_word_embeddings"})
    return fields


def vary(into, count, names):
    into = pathlib.Path(into)
    for name, (family, fields) in MODELS.items():
        if names and name not in names or "mxfp4" in name:
            continue
        made = tries = 0
        while made < count and tries < 5 * count:
            tries += 1
            changed = varied(family, fields, random.Random(f"{name} {tries}"))
            try:
                make(f"{name}_{tries}", family, changed, 0, into)
            except Exception as e:  # noqa: BLE001: not every combination is a model
                print(name, tries, "is none:", str(e)[:150])
                shutil.rmtree(into / f"{name}_{tries}", ignore_errors=True)
                continue
            made += 1
            golden = json.loads((into / f"{name}_{tries}" / "golden.json").read_text())
            prompt = torch.tensor([golden["tokens"][:9]])
            kind = AutoModelForImageTextToText if "text_config" in changed else AutoModelForCausalLM
            model = kind.from_pretrained(into / f"{name}_{tries}", dtype=torch.float32, attn_implementation="eager")  # make has trained its own
            out = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=12, eos_token_id=-1, pad_token_id=0)
            (into / f"{name}_{tries}" / "greedy.json").write_text(json.dumps({"prompt": prompt[0].tolist(), "tokens": out[0, 9:].tolist()}))


def check(saved):
    for folder in sorted(p for p in pathlib.Path(saved).iterdir() if p.is_dir()):
        model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
        assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
        own = here / folder.name
        golden = json.loads(((own if own.exists() else folder.parent.parent / folder.name) / "golden.json").read_text())
        tokens = torch.tensor(golden["tokens"]).reshape(golden["sequences"], -1)
        want = load_file(folder / "logits.safetensors")["logits"]
        have = model(tokens, use_cache=False).logits.detach().reshape(want.shape)
        print(folder.name, "logits differ by", ((have - want).abs().max() / want.abs().max()).item(), "of the largest")


if sys.argv[1:2] == ["check"]:
    check(sys.argv[2])
elif sys.argv[1:2] == ["vary"]:
    vary(sys.argv[2], int(sys.argv[3]), sys.argv[4:])
else:
    for name, (family, fields) in MODELS.items():
        if len(sys.argv) == 1 or name in sys.argv[1:]:
            make(name, family, fields)
