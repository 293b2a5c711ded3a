# Writes the folder gguf: what llama.cpp's converter makes of small models of each family. Python 3.13,
# `pip install torch==2.15.0 transformers==5.24.0 safetensors numpy`, and a checkout of llama.cpp of 2026-11.
#
#   python gguf.py LLAMA_CPP [FAMILY ...]
#
# Elements of weights are (7i + crc32(name)) % 255 - 127 divided by 128, which all types hold. A tensor is its type, its
# shape with rows first, and the beginning of the SHA-256 of its bytes.
import hashlib, json, os, pathlib, sys, tempfile, zlib

sys.path[:0] = [sys.argv[1], sys.argv[1] + "/gguf-py"]
import gguf, numpy as np, torch
from conversion import base
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

import families

import conversion

conversion.load_all_models()


def without_vocabulary(cls):
    cls.set_vocab = lambda self: None
    for sub in cls.__subclasses__():
        without_vocabulary(sub)


without_vocabulary(base.TextModel)
sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=128, head_dim=8, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2)
models, family = families.table("GGUF")
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
for name, (kind, more) in models.items():
    if sys.argv[2:] and family[name] not in sys.argv[2:]:
        continue
    config = AutoConfig.for_model(kind, **{**sizes, **more})
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
for module in set(map(family.get, out)):
    lines = ",\n".join(f" {json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in out.items() if family[k] == module)
    (pathlib.Path(__file__).parent / "gguf" / f"{module}.json").write_text("{\n" + lines + "\n}\n")
