"""What each family of models brings to the scripts of this folder. A module is a family, and may have

MODELS      models.py and generate.py: the name of a folder of models, its model_type, and the fields of its configuration
WHOLE       models.py and make.py: the class of transformers of a whole model whose text is one of these
parts       models.py: a function from the key of a parameter of transformers, and the tensor, to those of the files, where they differ
initial     models.py: a function from a key and a parameter that sets the parameter and returns True, for values of its own
clear       models.py: a function of the model, the configuration and tokens: whether routers choose by a margin, as a model in 16 bits needs
ADAPTERS    adapters.py: the name of a folder of adapters, its model, whether that is in NF4, and the fields of PEFT's configuration
EXPERTS     adapters.py: the same of adapters of experts, and the ends of their modules
PUBLISHED   make.py: the fields of published files config.json
SPELLINGS   make.py: other fields and values, and how older files spell them
DEFAULTS    make.py: each model_type whose fields may all be left out
name_as_llama   make.py: a function of the configuration and the model without its head, which gives modules the names of Llama's
names_only  make.py: true if only the names and shapes of tensors are compared, since modules are not like those of Llama
extra       make.py: a function of the configuration and the model: more fields of Config, by their names in Go
FIELDS      fields.py: the fields of a small model, by model_type
GGUF        gguf.py: the name of a model, its model_type, and the fields of its configuration beside the common ones
"""

import importlib
import pathlib

ALL = {p.stem: importlib.import_module(f".{p.stem}", __name__) for p in sorted(pathlib.Path(__file__).parent.glob("*.py")) if p.stem not in ("__init__", "common")}


def table(name):
    """The entries of all families, and the family of each."""
    entries, of = {}, {}
    for family, module in ALL.items():
        for key, value in getattr(module, name, {}).items():
            assert key not in entries, (name, key)
            entries[key], of[key] = value, family
    return entries, of


def hook(family, name):
    """A function of a family, which is a model_type or the name of a module; None if it has none."""
    return getattr(ALL.get(family) or ALL.get(family.removesuffix("_text")), name, None)


def parts(config, key, tensor):
    """The parameters of snug in a parameter of transformers."""
    own = hook(config.model_type, "parts")
    if own:
        yield from own(key, tensor)
        return
    module, _, part = key.rpartition(".")
    if not module.endswith("mlp.experts"):
        yield key, tensor
        return
    part = part.partition("_proj")[0]
    for e, x in enumerate(tensor):
        half = len(x) // 2
        for piece, y in ({"down_proj": x} if part == "down" else {"gate_proj": x[:half], "up_proj": x[half:]}).items():
            yield f"{module}.{e}.{piece}.weight", y.contiguous()
