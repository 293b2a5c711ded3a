"""Makes the folder fields, of the fields of config.json that transformers reads for each family, and fields.json.

Python 3.11, transformers 5.24.0, torch 2.15.0:

    pip install transformers==5.24.0 torch==2.15.0
    python transformer/testdata/fields.py          # ten minutes
    python transformer/testdata/fields.py gemma    # these only, of the names in FIELDS

reads    the fields that the class of a configuration takes, and those that its model asks for while it is built and run
changes  the fields of reads with a value that changes the logits, the loss, the names of the parameters or the
         gradients of a small model
known    in fields.json: the fields of all classes
"""

import inspect
import json
import pathlib
import re
import sys
import warnings

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

import families

here = pathlib.Path(__file__).parent
transformers.logging.set_verbosity(transformers.logging.CRITICAL)
warnings.simplefilter("ignore")

FAMILIES = families.table("FIELDS")[0]
VALUES = [True, False, 0, 1, 2, 3, 8, 0.5, "x", "gelu", "bfloat16", [0], ["full_attention", "sliding_attention"], {"0": {"hidden_act": "gelu"}}, {"factor": 2.0, "type": "linear"}]
IDS = torch.tensor([[1, 7, 3, 9, 2, 30, 11, 5, 8, 4, 12, 3, 3, 20, 6, 1]])

asked = None
original = PreTrainedConfig.__getattribute__


def ask(self, key):
    if asked is not None and not key.startswith("__"):
        asked.add(key)
    return original(self, key)


PreTrainedConfig.__getattribute__ = ask


def result(raw):
    """What a model computes, as bytes, and the names of its parameters; None if there is no such model."""
    try:
        parts = []
        for attention in ("eager", "eager" if raw["model_type"] in ("gpt_oss", "gemma2") else "sdpa"):
            config = AutoConfig.for_model(**json.loads(json.dumps(raw)))
            config._attn_implementation = attention
            torch.manual_seed(7)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            torch.manual_seed(8)
            with torch.no_grad():
                for _, p in sorted(model.named_parameters()):
                    p.copy_(torch.randn(p.shape) * 0.3)
            out = model(input_ids=IDS, labels=IDS)
            out.loss.backward()
            parts += [out.logits.detach(), out.loss.detach().reshape(1)] + [p.grad for _, p in sorted(model.named_parameters()) if p.grad is not None]
        return b"".join(p.contiguous().numpy().tobytes() for p in parts), sorted(model.state_dict())
    except Exception:  # noqa: BLE001: most values are of another type than the field
        return None


def consumed(cls):
    """Names that the classes of a configuration take from what remains of config.json."""
    found = set()
    for c in cls.__mro__:
        if c.__module__.startswith("transformers"):
            found |= set(re.findall(r"""kwargs\.(?:pop|get)\(\s*["'](\w+)["']""", inspect.getsource(c)))
    return found


def main():
    global asked
    known = set()
    for kind in CONFIG_MAPPING_NAMES:
        try:
            cls = CONFIG_MAPPING[kind]
        except Exception:  # noqa: BLE001: a class that needs a package that is not here
            continue
        known |= set(getattr(cls, "__dataclass_fields__", {})) | set(getattr(cls, "attribute_map", {}))
    methods = {name for name in dir(PreTrainedConfig) if callable(getattr(PreTrainedConfig, name, None))} | {"model_type", "attribute_map"}
    known = sorted(known - methods)
    (here / "fields.json").write_text(json.dumps({"transformers": transformers.__version__, "known": known}, indent=0) + "\n")
    for kind in sys.argv[1:] or FAMILIES:
        raw = {"model_type": kind, **FAMILIES[kind]}
        cls = CONFIG_MAPPING[kind]
        asked = set()
        base = result(raw)
        assert base is not None, kind
        names, asked = asked, None
        names |= set(cls.__dataclass_fields__) | set(cls.attribute_map) | consumed(cls)
        names -= methods
        changes = [n for n in sorted(names) if any(result({**raw, n: value}) not in (None, base) for value in VALUES)]
        # A field that nobody asks for changes nothing: a sample of them shows that the list is whole.
        others = [n for n in known if n not in names]
        assert not [n for n in others[::17] if any(result({**raw, n: value}) != base for value in (True, 3, "x"))], kind
        (here / "fields" / f"{kind}.json").write_text(json.dumps({"transformers": transformers.__version__, "reads": sorted(names), "changes": changes}, indent=0) + "\n")
        print(kind, len(names), changes)


main()
