"""Makes the folder configs, folders.json and ropes.json with transformers, and checks what Config.Write wrote.

Python 3.11, transformers 5.24.0, torch 2.15.0:

    pip install transformers==5.24.0 torch==2.15.0
    python transformer/testdata/make.py          # makes the files, or those of configs that are named
    python transformer/testdata/make.py check    # transformers reads the folder written as the files it came from

configs       files config.json of each family, and the models that transformers makes of them: their
              modules and parameters, on the device meta
folders.json  what save_pretrained writes for small models, with their head and without: the
              file config.json, and the names and shapes of model.safetensors
ropes.json    parameters of ropes, and what ROPE_INIT_FUNCTIONS returns for them
written       what Config.Write makes of configs: UPDATE=1 go test -run TestWriteConfig ./transformer
"""

import hashlib
import json
import os
import pathlib
import sys
import tempfile

# torch's powers with AVX2 are off by 1 unit in the last place in 5 of 1056 cases; without it they are rounded right.
os.environ["ATEN_CPU_CAPABILITY"] = "default"

import torch
import transformers
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, Gemma3ForConditionalGeneration, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

import families
from families.common import small

here = pathlib.Path(__file__).parent
PUBLISHED, OF = families.table("PUBLISHED")
SPELLINGS, spelled = families.table("SPELLINGS")
OF |= spelled
CASES = {**PUBLISHED, **SPELLINGS}
for module in families.ALL:
    for kind in getattr(families.ALL[module], "DEFAULTS", []):
        CASES[f"{kind}, defaults"], OF[f"{kind}, defaults"] = {"model_type": kind}, module
transformers.logging.set_verbosity_error()
ACTIVATIONS = {"SiLUActivation": "silu", "GELUTanh": "gelu_tanh", "NewGELUActivation": "gelu_tanh", "GELUActivation": "gelu", "ReLUSquaredActivation": "relu2"}


def bits(tensor):
    """8 hexadecimal digits for each float32."""
    return "".join(f"{code & 0xFFFFFFFF:08x}" for code in tensor.to(torch.float32).contiguous().view(torch.int32).tolist())


def frequencies(config, layer_type=None, length=None, rotary=LlamaRotaryEmbedding):
    parameters = config.rope_parameters if layer_type is None else config.rope_parameters[layer_type]
    if parameters["rope_type"] == "default":
        if layer_type is not None:
            config = LlamaConfig(head_dim=config.head_dim, rope_parameters=dict(parameters))
        inverse, attention = rotary.compute_default_rope_parameters(config, device="cpu")
    else:
        kwargs = {"layer_type": layer_type} if layer_type is not None else {}
        inverse, attention = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, device="cpu", seq_len=length, **kwargs)
    return {"inverse": bits(inverse), "attention": float(attention)}


def digest(shapes):
    lines = "".join(f"{name} {list(shape)}\n" for name, shape in sorted(shapes.items()))
    return {"count": len(shapes), "sha256": hashlib.sha256(lines.encode()).hexdigest()}


def read(config):
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
        return AutoConfig.from_pretrained(folder)


def experts(config, layers):
    """The experts of a model."""
    kind = config.model_type
    if kind not in ("mixtral", "qwen3_moe", "gpt_oss"):
        return None
    dense = [not hasattr(layer.mlp, "experts") for layer in layers]
    some = next(layer.mlp for layer in layers if hasattr(layer.mlp, "experts"))
    oss, hidden = kind == "gpt_oss", (config.moe_intermediate_size if kind == "qwen3_moe" else config.intermediate_size)
    found = {
        "count": config.num_local_experts, "chosen": (some.router if oss else some.gate).top_k, "hidden": hidden, "dense": dense if any(dense) else None,
        "normalize": kind != "qwen3_moe" or some.gate.norm_topk_prob, "bias": oss, "clamped": oss, "limit": some.experts.limit if oss else 0.0,
        "alpha": some.experts.alpha if oss else 0.0, "router_loss": config.router_aux_loss_coef if config.output_router_logits else 0.0,
    }
    return found


def tensors(whole, config, model):
    """The names and shapes of the tensors of the text."""
    found = {}
    for name, p in model.state_dict().items():
        if name.endswith("lm_head.weight") and whole.tie_word_embeddings or whole is not config and "language_model" not in name and name != "lm_head.weight":
            continue
        found |= {key: tuple(x.shape) for key, x in families.parts(config, name, p)}
    return digest(found)


def describe(raw):
    whole = read(raw)
    many = hasattr(whole, "text_config")
    config = whole.text_config if many else whole
    gpt2 = config.model_type == "gpt2"
    with torch.device("meta"):
        model = (AutoModelForImageTextToText if many else AutoModelForCausalLM).from_config(whole)
    if families.hook(config.model_type, "names_only"):
        return {"family": config.model_type, "whole": whole.model_type if many else "", "tensors": tensors(whole, config, model)}
    neox = config.model_type == "gpt_neox"
    body = model.model.language_model if many else model.transformer if gpt2 else model.gpt_neox if neox else model.model
    layers = body.h if gpt2 else body.layers
    if rename := families.hook(config.model_type, "name_as_llama"):
        rename(config, body)
    first = layers[0]
    attention, mlp = (first.attn, first.mlp) if gpt2 else (first.attention, first.mlp) if neox else (first.self_attn, first.mlp)
    norm = body.ln_f if gpt2 else body.final_layer_norm if neox else body.norm
    tied = bool(whole.tie_word_embeddings)
    found = experts(config, layers)
    eos = getattr(whole, "eos_token_id", None) or config.eos_token_id
    want = {
        "family": config.model_type, "whole": whole.model_type if many else "", "vocab": config.vocab_size, "dim": config.hidden_size,
        "hidden": mlp.c_fc.nf if gpt2 else config.intermediate_size, "layers": len(layers), "heads": config.num_attention_heads,
        "kv_heads": config.num_attention_heads if gpt2 or neox else config.num_key_value_heads, "head_dim": getattr(attention, "head_dim", getattr(attention, "head_size", None)),
        "context": config.max_position_embeddings, "layer_norm": "LayerNorm" in type(norm).__name__,
        "norm_eps": getattr(norm, "eps", None) or norm.variance_epsilon, "norm_plus_one": "Gemma" in type(norm).__name__ or "1P" in type(norm).__name__,
        "post_norms": hasattr(first, "post_feedforward_layernorm") or hasattr(first, "post_mlp_layernorm"), "qk_norm": hasattr(attention, "q_norm"),
        "parallel": bool(getattr(first, "use_parallel_residual", False)), "one_norm": bool(getattr(first, "use_parallel_residual", False)) and getattr(first, "post_attention_layernorm", None) is None,
        "qkv_bias": gpt2 or (attention.query_key_value if neox else getattr(attention, "q_proj", None) or attention.o_proj).bias is not None,
        "out_bias": gpt2 or (attention.dense if neox else attention.o_proj).bias is not None,
        "mlp_bias": gpt2 or not found and getattr(mlp, "down_proj", getattr(mlp, "c_proj", getattr(mlp, "dense_4h_to_h", None))).bias is not None, "sinks": hasattr(attention, "sinks"), "experts": found,
        "activation": "silu" if found else ACTIVATIONS[type(getattr(mlp, "act", None) or getattr(mlp, "act_fn", None) or mlp.activation_fn).__name__],
        "gated": bool(found) or hasattr(mlp, "gate_proj") or hasattr(mlp, "gate_up_proj"),
        "learned_positions": hasattr(body, "wpe"),
        "windows": [(config.sliding_window if config.model_type in ("mistral", "ministral3", "mixtral", "phi3", "starcoder2") else 0 if gpt2 else getattr(getattr(l, "self_attn", None), "sliding_window", None)) or 0
                    for l in layers],
        "score_scale": attention.scaling, "score_cap": getattr(attention, "attn_logit_softcapping", None) or 0,
        "logit_cap": getattr(config, "final_logit_softcapping", None) or 0,
        "embedding_scale": 1.0 if gpt2 else getattr(body, "embedding_multiplier", None) or getattr(getattr(body, "embed_tokens", None), "scalar_embed_scale", 1.0), "tied": tied,
        "attention_dropout": config.attn_pdrop if gpt2 else getattr(config, "attention_dropout", 0.0),
        "residual_dropout": config.resid_pdrop if gpt2 or config.model_type == "phi3" else getattr(config, "residual_dropout", getattr(config, "hidden_dropout", 0.0)),
        "embedding_dropout": config.embd_pdrop if gpt2 else config.hidden_dropout if neox else getattr(config, "embedding_dropout", 0.0),
        "no_rope": [not x for x in getattr(config, "no_rope_layers", [])[:len(layers)]],
        "query_scale": (getattr(config, "rope_parameters", None) or {}).get("llama_4_scaling_beta", 0.0),
        "residual_scale": getattr(config, "residual_multiplier", 1.0) % 1.0, "logit_scale": 1 / config.logits_scaling if getattr(config, "logits_scaling", 1.0) != 1 else 0.0,
        "init_std": config.initializer_range, "dtype": str(whole.dtype).removeprefix("torch."),
        "bos": config.bos_token_id, "eos": eos if isinstance(eos, list) else [] if eos is None else [eos], "pad": config.pad_token_id,
        "tensors": tensors(whole, config, model),
    }
    if extra := families.hook(config.model_type, "extra"):
        want["config"] = extra(config, body)
    if config.model_type == "gemma3_text":
        want["rope"] = frequencies(config, "full_attention")
        want["local_rope"] = frequencies(config, "sliding_attention")
    elif not gpt2:
        want["rope"] = frequencies(config, rotary=type(body.rotary_emb))
    return want


def folders():
    vision = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    raws = {name: {**raw, "num_hidden_layers": 1} for name, raw in SPELLINGS.items() if name in (
        "llama, biases", "qwen3, bias", "mistral, window", "gemma3, linear")}
    raws["gemma2, scalar"] = {**SPELLINGS["gemma2, scalar"], "num_hidden_layers": 1, "tie_word_embeddings": True}
    raws["qwen2"] = small("qwen2", num_hidden_layers=1)
    raws["mixtral"] = small("mixtral", num_hidden_layers=1, num_local_experts=3)
    raws["qwen3_moe"] = small("qwen3_moe", num_hidden_layers=2, num_experts=3, num_experts_per_tok=2, mlp_only_layers=[0])
    raws["gpt_oss"] = small("gpt_oss", num_hidden_layers=1, num_local_experts=3, num_experts_per_tok=2)
    raws["gpt2"] = SPELLINGS["gpt2, other names"]
    text = {**SPELLINGS["gemma3, linear"], "num_hidden_layers": 1}
    raws["gemma3, images"] = {"model_type": "gemma3", "text_config": text, "vision_config": vision, "mm_tokens_per_image": 4}
    found = []
    for name, raw in raws.items():
        config = read(raw)
        model = Gemma3ForConditionalGeneration(config) if raw["model_type"] == "gemma3" else AutoModelForCausalLM.from_config(config)
        for part, what in ((model, name), (model.base_model, name + ", no head")):
            with tempfile.TemporaryDirectory() as folder:
                part.save_pretrained(folder)
                with safe_open(pathlib.Path(folder) / "model.safetensors", "pt") as f:
                    shapes = {key: f.get_slice(key).get_shape() for key in f.keys()}
                config = json.loads((pathlib.Path(folder) / "config.json").read_text())
            found.append({"name": what, "config": config, "tensors": shapes})
    return found


def ropes():
    base = [
        {"rope_type": "default"}, {"rope_type": "linear", "factor": 8.0}, {"rope_type": "linear", "factor": 3}, {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "dynamic", "factor": 8.5},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
        {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.5, "high_freq_factor": 3.25, "original_max_position_embeddings": 1000},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
        {"rope_type": "yarn", "factor": 16.5, "original_max_position_embeddings": 2048, "beta_fast": 20.0, "beta_slow": 3.0, "truncate": False},
        {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 1.0, "mscale_all_dim": 0.7},
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 4, "attention_factor": 0.5},
        {"rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": 100},
        {"rope_type": "longrope", "factor": 32.0, "original_max_position_embeddings": 4096},
        {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": 1.25},
    ]
    cases = []
    for parameters in base:
        for theta in (10000.0, 500000.0, 1e6, 12345.678):
            for dim in (4, 64, 80, 128, 256):
                if dim == 256 and theta != 1e6 or dim == 128 and theta != 500000.0 or dim == 80 and theta > 1e5:
                    continue
                lengths = [0, 100, 4097, 131072] if parameters["rope_type"] in ("dynamic", "longrope") and dim != 256 else [0]
                if parameters["rope_type"] == "longrope":
                    parameters = {**parameters, "short_factor": [1 + i / 30 for i in range(dim // 2)], "long_factor": [1.5 + i / 3 for i in range(dim // 2)]}
                for length in lengths:
                    config = LlamaConfig(head_dim=dim, max_position_embeddings=4096, rope_parameters={"rope_theta": theta, **parameters})
                    found = frequencies(config, length=length or None)
                    cases.append({"parameters": {"rope_theta": theta, **parameters}, "dim": dim, "length": length, **found})
    return cases


def check():
    count = 0
    for path in sorted((here / "written").iterdir()):
        for name, text in json.loads(path.read_text()).items():
            want, got = describe(CASES[name]), describe(json.loads(text))
            for key in want:
                assert got[key] == want[key] or key == "score_scale" and abs(got[key] - want[key]) < 1e-12, (name, key, got[key], want[key])
            count += 1
    print(count, "files that Config.Write wrote are read by transformers as what they were made of")


def write(path, cases):
    head = {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0]}
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    path.write_text(json.dumps(head)[:-1] + ', "cases": [\n' + lines + "\n]}\n")


if sys.argv[1:] == ["check"]:
    check()
else:
    for module in sys.argv[1:] or sorted(set(OF.values())):
        write(here / "configs" / f"{module}.json", [{"name": name, "config": raw, "want": describe(raw)} for name, raw in CASES.items() if OF[name] == module])
    if not sys.argv[1:]:
        write(here / "folders.json", folders())
        write(here / "ropes.json", ropes())
