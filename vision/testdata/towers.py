"""Makes the folder towers: small vision transformers as transformers saves them, and what it computes.

Python 3.13, transformers 5.24.0, torch 2.15.0, safetensors 0.8.0:

    python vision/testdata/towers.py              # makes the folder
    python vision/testdata/towers.py check DIR    # transformers loads what Tower.Save wrote

towers/NAME has the files of save_pretrained, weights in bfloat16, and golden.json: the last hidden state and the logits of two images,
the loss of the labels 2 and 0, and for each parameter the norm of the loss's gradient and its product with numbers that the test makes
too; computed in float64. Images have the size of the processor where there is one; "resized" has the last hidden state of an image of
another size, with interpolate_pos_encoding.

check: SNUG_SAVE=DIR go test -run TestTowersForTransformers ./vision writes the folders.
"""

import json
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.idefics3.modeling_idefics3 import Idefics3VisionTransformer
from transformers.models.smolvlm.modeling_smolvlm import SmolVLMVisionConfig, SmolVLMVisionTransformer

HERE = pathlib.Path(__file__).parent
SIDE, LABELS, RESIZED = 12, [2, 0], 18
SHAPE = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, image_size=SIDE + 1, patch_size=4)
DINO = dict({k: v for k, v in SHAPE.items() if k != "intermediate_size"}, mlp_ratio=2, image_size=29)
CROP = dict(image_processor_type="BitImageProcessor", size={"shortest_edge": 16}, crop_size={"height": SIDE + 1, "width": SIDE + 1})
TEXT = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=10, max_position_embeddings=4)
CLASSES = {i: name for i, name in enumerate(["cat", "dog", "bird"])}


def numbers(number, shape):
    """Numbers from -1 to 1 that the test makes too."""
    n = torch.Size(shape).numel()
    x = torch.arange(n, dtype=torch.int64) + number * 97531
    x = (x * x % 2**32 * 2654435761 + x * 40503) % 2**32
    return (x.double() / 2**31 - 1).float().double().reshape(shape)


def models():
    t = transformers
    yield "vit", t.ViTForImageClassification(t.ViTConfig(**SHAPE, id2label=CLASSES))
    yield "clip", t.CLIPForImageClassification(t.CLIPConfig(vision_config=SHAPE, text_config=TEXT, id2label=CLASSES))
    yield "siglip", t.SiglipForImageClassification(t.SiglipConfig(vision_config=SHAPE, text_config=TEXT, id2label=CLASSES))
    yield "vit-tower", t.ViTModel(t.ViTConfig(**SHAPE, qkv_bias=False))
    yield "clip-tower", t.CLIPVisionModel(t.CLIPVisionConfig(**SHAPE))
    yield "siglip-tower", t.SiglipVisionModel(t.SiglipVisionConfig(**SHAPE))
    yield "clip-whole", t.CLIPModel(t.CLIPConfig(vision_config=SHAPE, text_config=TEXT, projection_dim=8))
    yield "dinov2", t.Dinov2ForImageClassification(t.Dinov2Config(**DINO, id2label=CLASSES))
    yield "dinov2-registers", t.Dinov2WithRegistersForImageClassification(
        t.Dinov2WithRegistersConfig(**DINO, num_register_tokens=2, use_swiglu_ffn=True, id2label=CLASSES))
    yield "dinov2-tower", t.Dinov2Model(t.Dinov2Config(**dict(DINO, image_size=SIDE), use_swiglu_ffn=True, qkv_bias=False))
    yield "smolvlm-tower", SmolVLMVisionTransformer(SmolVLMVisionConfig(**SHAPE))
    yield "deit", t.DeiTForImageClassification(t.DeiTConfig(**SHAPE, id2label=CLASSES))


def side(m, folder):
    processor = folder / "preprocessor_config.json"
    if processor.exists():
        return json.loads(processor.read_text())["crop_size"]["height"]
    c = m.config
    return getattr(c, "vision_config", c).image_size


def golden(m, folder):
    m, s = m.double(), side(m, folder)
    x, out = numbers(1000, (2, 3, s, s)), {}
    if hasattr(m, "classifier"):
        y = m(x, labels=torch.tensor(LABELS).clamp(max=len(m.config.id2label) - 1))
        y.loss.backward()
        out["loss"], out["logits"] = y.loss.item(), y.logits.flatten().tolist()
    tower = getattr(m, m.base_model_prefix, getattr(m, "vision_model", m))
    digits = lambda rows: [float("%.9g" % v) for v in rows.flatten()]
    with torch.no_grad():
        out["rows"] = digits(tower(x).last_hidden_state)
        if folder.name in ("vit-tower", "clip-tower", "siglip-tower"):
            out["resized"] = digits(tower(numbers(1000, (1, 3, RESIZED, RESIZED)), interpolate_pos_encoding=True).last_hidden_state)
    return out


def gradients(m, names):
    """Of the parameters in the order of their names in the file, which names has by those in memory."""
    params = sorted(((names[n], p) for n, p in m.named_parameters() if p.grad is not None), key=lambda of: of[0])
    return {n: [float("%.9g" % v) for v in (p.grad.norm(), (p.grad * numbers(2000 + i, p.shape)).sum())] for i, (n, p) in enumerate(params)}


def spelled(m, folder):
    """The names in the file of the parameters in memory: found by values, or where a tensor has two parameters those in memory."""
    file = load_file(folder / "model.safetensors")
    key = lambda v: (tuple(v.shape), tuple(v.double().flatten().tolist()))
    by = {key(v): n for n, v in file.items()}
    assert len(by) == len(file)
    return {n: by.get(key(p.detach()), n) for n, p in m.named_parameters()}


def make():
    shutil.rmtree(HERE / "towers", ignore_errors=True)
    for at, (name, m) in enumerate(models()):
        folder = HERE / "towers" / name
        with torch.no_grad():
            for i, (n, p) in enumerate(sorted(m.named_parameters())):
                one = "norm" in n and n.endswith("weight") or "layrnorm" in n and n.endswith("weight")
                p.copy_((numbers(100 * at + i, p.shape) / 2 + one).to(torch.bfloat16))
        m.to(torch.bfloat16).save_pretrained(folder)
        if name in ("dinov2", "dinov2-registers"):
            (folder / "preprocessor_config.json").write_text(json.dumps(CROP))
        m = m.double()
        out = golden(m, folder)
        if "loss" in out:
            out["gradients"] = gradients(m, spelled(m, folder))
        (folder / "golden.json").write_text(json.dumps(out, indent=0))
    # The names of version 5 in memory, which some tools write.
    for name in ["vit", "dinov2-registers"]:
        folder = HERE / "towers" / (name + "-v5")
        shutil.copytree(HERE / "towers" / name, folder)
        (folder / "golden.json").unlink()
        m = transformers.AutoModelForImageClassification.from_pretrained(folder)
        save_file({n: p.to(torch.bfloat16).contiguous() for n, p in m.state_dict().items()}, folder / "model.safetensors", {"format": "pt"})


def check(saved):
    for folder in sorted(pathlib.Path(saved).iterdir()):
        want = json.loads((folder / "want.json").read_text())
        config = transformers.AutoConfig.from_pretrained(folder)
        m, info = (getattr(transformers, config.architectures[0], None) or globals()[config.architectures[0]]).from_pretrained(folder, output_loading_info=True, dtype=torch.float64)
        out = golden(m, folder)
        got = torch.tensor(out.get("logits", out["rows"]))
        error = ((got - torch.tensor(want).double()).abs().max() / got.abs().max()).item()
        print(f"{folder.name}: {config.architectures[0]}, error {error:.1e}, missing {sorted(info['missing_keys'])}, unexpected {sorted(info['unexpected_keys'])}")
        missing = {n for n in info["missing_keys"] if not n.startswith("pooler.")}  # which a new ViTModel gets
        assert error < 1e-5 and not missing and not info["unexpected_keys"]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        check(sys.argv[2])
    else:
        make()
