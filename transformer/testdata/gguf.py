# Writes gguf.json: what llama.cpp's converter makes of small models of each family. Python 3.13,
# `pip install torch==2.15.0 transformers==5.24.0 safetensors numpy`, and a checkout of llama.cpp of 2026-11.
#
#   python gguf.py LLAMA_CPP > gguf.json
#
# Elements of weights are (7i + crc32(name)) % 255 - 127 divided by 128, which all types hold. A tensor is its type, its
# shape with rows first, and the beginning of the SHA-256 of its bytes.
import hashlib, json, os, pathlib, sys, tempfile, zlib

sys.path[:0] = [sys.argv[1], sys.argv[1] + "/gguf-py"]
import gguf, numpy as np, torch
from conversion import base
from safetensors.torch import load_file, save_file
from transformers import (ArceeConfig, AutoModelForCausalLM, Ernie4_5Config, Gemma2Config, Gemma3TextConfig, GemmaConfig, Glm4Config, GPT2Config, GPTNeoXConfig, GptOssConfig, LlamaConfig,
                          Ministral3Config, MinistralConfig, MistralConfig, MixtralConfig, NemotronConfig, Phi3Config, Qwen2Config, Qwen3Config, Qwen3MoeConfig, SeedOssConfig, SmolLM3Config, StableLmConfig,
                          Starcoder2Config)

import conversion

conversion.load_all_models()


def without_vocabulary(cls):
    cls.set_vocab = lambda self: None
    for sub in cls.__subclasses__():
        without_vocabulary(sub)


without_vocabulary(base.TextModel)
sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=128, head_dim=8, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2)
gemma = dict(tie_word_embeddings=True, head_dim=16)
models = {
    "llama": (LlamaConfig, dict(attention_bias=True, mlp_bias=True)),
    "llama_tied": (LlamaConfig, dict(tie_word_embeddings=True, rms_norm_eps=1e-5)),
    "llama_linear": (LlamaConfig, dict(rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=2.0))),
    "llama_llama3": (LlamaConfig, dict(rope_parameters=dict(rope_type="llama3", rope_theta=50000.0, factor=8.0, low_freq_factor=1.0,
                                                            high_freq_factor=4.0, original_max_position_embeddings=64))),
    "llama_yarn": (LlamaConfig, dict(rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=32))),
    "mistral": (MistralConfig, dict(sliding_window=None)),
    "ministral": (MinistralConfig, dict(sliding_window=None)),
    "ministral3": (Ministral3Config, dict(pad_token_id=None, rope_parameters=dict(
        rope_type="yarn", rope_theta=10000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=32, mscale=1.0, mscale_all_dim=0.5,
        llama_4_scaling_beta=0.25))),
    "mixtral": (MixtralConfig, dict(num_local_experts=4, num_experts_per_tok=2)),
    "qwen2": (Qwen2Config, {}),
    "qwen3": (Qwen3Config, dict(head_dim=16)),
    "qwen3_moe": (Qwen3MoeConfig, dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, norm_topk_prob=True)),
    "gemma": (GemmaConfig, gemma),
    "gemma2": (Gemma2Config, dict(gemma, query_pre_attn_scalar=16, sliding_window=8)),
    "gemma3": (Gemma3TextConfig, dict(gemma, query_pre_attn_scalar=16, sliding_window=8, num_hidden_layers=7, rope_parameters={
        "full_attention": dict(rope_type="linear", factor=8.0, rope_theta=1000000.0), "sliding_attention": dict(rope_type="default", rope_theta=10000.0)})),
    "gpt2": (GPT2Config, None),
    "gpt_oss": (GptOssConfig, dict(num_local_experts=4, num_experts_per_tok=2, head_dim=16, sliding_window=8, rope_parameters=dict(
        rope_type="yarn", rope_theta=150000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=False, original_max_position_embeddings=32))),
    "smollm3": (SmolLM3Config, dict(num_hidden_layers=5, pad_token_id=None)),
    "ernie4_5": (Ernie4_5Config, dict(tie_word_embeddings=True)),
    "glm4": (Glm4Config, dict(attention_bias=True, pad_token_id=None)),
    "phi3": (Phi3Config, dict(sliding_window=64, pad_token_id=None)),
    "phi3_long": (Phi3Config, dict(pad_token_id=None, original_max_position_embeddings=32, rope_parameters=dict(
        rope_type="longrope", rope_theta=10000.0, short_factor=[1.0, 1.5, 2.0], long_factor=[1.0, 2.5, 6.0], partial_rotary_factor=0.75))),
    "arcee": (ArceeConfig, {}),
    "nemotron": (NemotronConfig, dict(mlp_bias=True, norm_eps=1e-4)),
    "starcoder2": (Starcoder2Config, dict(norm_epsilon=1e-4)),
    "stablelm": (StableLmConfig, dict(use_qkv_bias=True, layer_norm_eps=1e-4)),
    "stablelm_parallel": (StableLmConfig, dict(use_parallel_residual=True)),
    "gpt_neox": (GPTNeoXConfig, dict(rotary_pct=0.5)),
    "seed_oss": (SeedOssConfig, dict(attention_bias=True, attention_out_bias=False)),
}
types = {"f32": gguf.LlamaFileType.ALL_F32, "f16": gguf.LlamaFileType.MOSTLY_F16, "bf16": gguf.LlamaFileType.MOSTLY_BF16,
         "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0}


def values(name, shape):
    n = int(np.prod(shape))
    i = (np.arange(n, dtype=np.int64) * 7 + zlib.crc32(name.encode())) % 255
    return torch.from_numpy(((i - 127) / 128).astype(np.float32)).reshape(shape).to(torch.bfloat16)


def describe(path):
    r = gguf.GGUFReader(path)
    pairs = {k: f.contents() for k, f in r.fields.items() if not k.startswith(("GGUF.", "tokenizer.")) and k not in ("general.name", "general.size_label")}
    tensors = {t.name: [t.tensor_type.name.lower(), [int(n) for n in reversed(t.shape)], hashlib.sha256(t.data.tobytes()).hexdigest()[:12]] for t in r.tensors}
    return dict(metadata=pairs, tensors=tensors)


out = {}
for name, (cls, more) in models.items():
    if more is None:
        config = cls(vocab_size=64, n_embd=32, n_head=4, n_layer=2, n_positions=128, bos_token_id=1, eos_token_id=2)
    else:
        config = cls(**{**sizes, **more})
    with tempfile.TemporaryDirectory() as tmp:
        dir = pathlib.Path(tmp)
        AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(dir)
        file = dir / "model.safetensors"
        save_file({k: values(k, v.shape) for k, v in load_file(file).items()}, file, metadata={"format": "pt"})
        (dir / "tokenizer.json").write_text(json.dumps(dict(model=dict(vocab={str(i): i for i in range(64)}), added_tokens=[])))
        files = {}
        for kind in types if name == "llama" else ("f32", "q8_0"):
            arch = {"MinistralForCausalLM": "MistralForCausalLM"}.get(config.architectures[0], config.architectures[0])
            model = conversion.get_model_class(arch)(dir, types[kind], dir / f"{kind}.gguf", eager=True)
            model.hparams.setdefault("rotary_pct", (model.hparams.get("rope_parameters") or {}).get("partial_rotary_factor"))  # of transformers 4
            model.hparams.setdefault("n_ctx", model.hparams.get("n_positions"))
            with torch.inference_mode():
                model.write()
            files[kind] = describe(dir / f"{kind}.gguf")
        out[name] = dict(config=json.loads((dir / "config.json").read_text()), files=files)
print("{\n" + ",\n".join(f" {json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in out.items()) + "\n}")
