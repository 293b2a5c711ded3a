"""Writes rules.json here: what HuggingFace's PEFT does with fields of LoraConfig.

Python 3.11, peft 0.21.2, torch 2.15.0, scipy 1.17.1, attrs, datasets:

    pip install peft==0.21.2 torch==2.15.0 scipy==1.17.1 attrs datasets
    python qlora/testdata/peft/rules.py

fields    every field that PEFT saves, with its default
modules   configs, and of each the names of modules that it gives an adapter
ranks     configs with the rank and the alpha of each module
starts    values of init_lora_weights, and whether PEFT changes the base weight by them
values    of fields, those that a file may have by hand or from another program: the rank, the
          scale, the dropout and whether there are magnitudes of the adapter that PEFT makes
          from a file with peft_type, target_modules and this field, or why it makes none
"""

import json
import pathlib
import re
import warnings

import torch
from peft import LoraConfig, PeftConfig, get_peft_model
from peft.tuners.lora.config import CordaConfig, EvaConfig, LoraGAConfig
from peft.tuners.lora.corda import preprocess_corda
from peft.tuners.tuners_utils import _ExcludedModule, check_target_module_exists
from peft.utils.other import get_pattern_key
from torch import nn

NAMES = [f"model.layers.{i}.{m}" for i in (0, 1, 2, 11) for m in
         ("self_attn.q_proj", "self_attn.k_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.experts.1.w1", "mlp.experts.12.up_proj")]
NAMES += ["lm_head", "score", "up_proj", "proj", "model.embed", "encoder.h.1.attn.c_attn", "h.1.c_attn", "h.0.c_attn", "blocks.3.h.1.c_attn",
          "model.vision.layers.1.q_proj", "x_q_proj", "a.q_proj.b", "Q_PROJ", "model.layers.1x.q_proj", "a+b.q_proj", "straße.q_proj", "model.q-proj"]

MODULES = [
    dict(target_modules=["q_proj"]), dict(target_modules=["q_proj", "up_proj"]), dict(target_modules=["self_attn.q_proj"]),
    dict(target_modules=["proj"]), dict(target_modules=["model.layers.1.self_attn.q_proj", "score"]), dict(target_modules=["layers.1.self_attn.q_proj"]),
    dict(target_modules=["a+b.q_proj", "w1"]), dict(target_modules=[""]), dict(target_modules=[]), dict(target_modules=["."]), dict(target_modules=[".q_proj"]),
    dict(target_modules=r".*q_proj"), dict(target_modules=r"q_proj"), dict(target_modules=r".*\.(q|k)_proj"), dict(target_modules=r".*q_proj|.*k_proj$"),
    dict(target_modules=r"model\.layers\.(0|11)\.self_attn\.[qk]_proj"), dict(target_modules=r"(?i).*q_proj"), dict(target_modules=r"(?:.*?(?:layers|h).*?(?:q_proj|c_attn).*?)|(?:\bmodel\.layers\.[\d]{1,}\.mlp\.(?:(?:up_proj)))"),
    dict(target_modules=r".*\.[0-9]+\..*"), dict(target_modules=r"^model\.layers\.\d+\.self_attn\.\w+$"), dict(target_modules=r"[^.]+"), dict(target_modules=r"[]a-z_]+"),
    dict(target_modules=r"model\.layers\.[01]\.mlp\.up_proj", exclude_modules=r".*\.0\..*"), dict(target_modules=r".*?q_proj??"), dict(target_modules=r"(?P<a>x)?_?q_proj"),
    dict(target_modules=r".*_proj", exclude_modules=["up_proj", "lm_head"]), dict(target_modules=["q_proj", "up_proj"], exclude_modules=["model.layers.1.self_attn.q_proj"]),
    dict(target_modules=["q_proj", "up_proj"], exclude_modules=r".*layers\.1.*"), dict(target_modules=["q_proj"], exclude_modules=[]), dict(target_modules=["q_proj"], exclude_modules=["proj"]),
    dict(target_modules=["q_proj"], exclude_modules="q_proj"), dict(target_modules=["q_proj"], exclude_modules="all-linear"),
    dict(target_modules=["q_proj"], layers_to_transform=1), dict(target_modules=["q_proj", "w1", "up_proj", "c_attn"], layers_to_transform=[1]),
    dict(target_modules=["q_proj", "w1", "up_proj", "c_attn"], layers_to_transform=[0, 11]), dict(target_modules=["q_proj"], layers_to_transform=[]),
    dict(target_modules=["model.layers.2.self_attn.q_proj", "k_proj"], layers_to_transform=[1]), dict(target_modules=["q_proj", "c_attn"], layers_to_transform=[1], layers_pattern="h"),
    dict(target_modules=["q_proj", "c_attn"], layers_to_transform=[1], layers_pattern=["layers", "h"]), dict(target_modules=["q_proj", "c_attn"], layers_to_transform=[1], layers_pattern=["h", "layers"]),
    dict(target_modules=["q_proj", "c_attn", "w1"], layers_to_transform=[1], layers_pattern=r"(?:layers|h)"), dict(target_modules=["q_proj", "c_attn", "w1"], layers_to_transform=[1], layers_pattern=r"layers|h"),
    dict(target_modules=["q_proj", "w1"], layers_to_transform=[1, 12], layers_pattern="experts"), dict(target_modules=["q_proj"], layers_to_transform=[1], layers_pattern=""),
    dict(target_modules=["q_proj"], layers_to_transform=[1], layers_pattern=[]), dict(target_modules=["q_proj", "c_attn"], layers_to_transform=[3]), dict(target_modules=["q_proj"], layers_to_transform=0),
    dict(target_modules=["q_proj", "c_attn"], layers_to_transform=[1], layers_pattern=r"[a-z]+"), dict(target_modules=["q_proj", "c_attn"], layers_to_transform=[1], layers_pattern=[""]),
]

RANKS = [
    dict(rank_pattern={"q_proj": 3}, alpha_pattern={"up_proj": 5}), dict(rank_pattern={"layers.1.self_attn.q_proj": 3}), dict(rank_pattern={r"^model\.layers\.0\..*": 4, r"lm_head": 2}),
    dict(rank_pattern={r"model\.layers\.\d+\.mlp\..*": 4}, alpha_pattern={r".*_proj": 32, "score": 1}), dict(alpha_pattern={r"q_proj|up_proj": 2.5}), dict(rank_pattern={"proj": 7}),
    dict(rank_pattern={"a+b.q_proj": 9}), dict(rank_pattern={r"layers.(0|2).*": 6}, use_rslora=True), dict(rank_pattern={}), dict(rank_pattern={r"q_proj$": 2}), dict(rank_pattern={r"(self_attn|mlp)\..+": 2}),
]

VALUES = [None, True, False, 0, 1, -1, 2, 2.5, 2.0, 1e39, 0.5, "1", "", [], [1], ["x"], [None], ["0"], {}, {"up": 1}, {"up": 0}, {"up": -1},
          {"up": 2.5}, {"up": None}, {"up": True}, {"up": "1"}]
OWN = ["r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora", "fan_in_fan_out", "exclude_modules", "layers_to_transform",
       "layers_pattern", "rank_pattern", "alpha_pattern", "base_model_name_or_path", "target_modules"]

SIZE, RANK = 16, 4


def selected(config, name):
    found = check_target_module_exists(config, name)
    return bool(found) and not isinstance(found, _ExcludedModule)


def start(value):
    """Whether PEFT changes the base weight."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(SIZE, SIZE, bias=False))
    before = model[0].weight.detach().clone()
    options = dict(r=RANK, target_modules=["0"], init_lora_weights=value)
    if value == "eva":
        options["eva_config"] = EvaConfig()
    if value == "corda":
        options["corda_config"] = CordaConfig()
        preprocess_corda(model, LoraConfig(**options), run_model=lambda: model(torch.randn(64, SIZE)))
    if value == "lora_ga":
        options["lora_ga_config"] = LoraGAConfig()
        model[0]._peft_loraga_grad = torch.randn(SIZE, SIZE)
    adapted = get_peft_model(model, LoraConfig(**options))
    after = adapted.base_model.model[0].base_layer.weight.detach()
    return not torch.equal(before, after)


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Module()
        self.model.layers = nn.ModuleList(nn.ModuleDict({"up": nn.Linear(4, 4)}) for _ in range(2))

    def forward(self, x):
        return self.model.layers[1]["up"](self.model.layers[0]["up"](x))


def made(fields):
    """The rank, the scale, the dropout and whether there are magnitudes of the adapter of layer 1, or why there is none."""
    text = json.dumps({"peft_type": "LORA", "target_modules": ["up"], **fields})
    try:
        model = get_peft_model(Layers(), PeftConfig.from_peft_type(**json.loads(text))).eval()
        model(torch.ones(1, 4))
        layer = model.base_model.model.model.layers[1]["up"]
        if isinstance(layer, nn.Linear):
            return "NoAdapter"
        return [layer.r["default"], layer.scaling["default"], float(getattr(layer.lora_dropout["default"], "p", 0)), len(layer.lora_magnitude_vector) > 0]
    except Exception as e:  # of many types
        return type(e).__name__


def main():
    warnings.simplefilter("ignore")
    fields = LoraConfig().to_dict()
    modules = [{"config": c, "selected": [n for n in NAMES if selected(LoraConfig(**c), n)]} for c in MODULES]
    ranks = []
    for c in RANKS:
        config = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj"], **c)
        each = {}
        for n in NAMES:
            each[n] = [config.rank_pattern.get(get_pattern_key(config.rank_pattern, n), config.r),
                       config.alpha_pattern.get(get_pattern_key(config.alpha_pattern, n), config.lora_alpha)]
        ranks.append({"config": c, "each": {n: v for n, v in each.items() if v != [8, 16]}})
    values = [True, False, "gaussian", "eva", "orthogonal", "mica", "pissa", "pissa_niter_4", "olora", "OLoRA", "corda", "lora_ga"]  # "loftq" needs a GPU
    starts = [[v, start(v)] for v in values]
    values = [["revision", None, made({})]]
    for name in OWN:
        more = {"layers_to_transform": [1]} if name == "layers_pattern" else {}
        values += [[name, v, made({name: v, **more})] for v in VALUES]
    text = json.dumps({"values": values, "fields": fields, "names": NAMES, "modules": modules, "ranks": ranks, "starts": starts}, ensure_ascii=False, default=str, sort_keys=True)
    text = re.sub(r'(\{"config"|\["[a-z_]+", (?=[^"])|\], \["|, "[a-z]+": [\[{](?=[\[{"]))', lambda m: "\n" + m[0], text)
    (pathlib.Path(__file__).parent / "rules.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
