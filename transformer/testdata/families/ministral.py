from .common import SMALL, TINY, small

MODELS = {
    "ministral": ("ministral", {**SMALL, "num_hidden_layers": 3, "sliding_window": 5,
                                "layer_types": ["full_attention", "sliding_attention", "full_attention"]}),
}
SPELLINGS = {
    "ministral, types": small("ministral", head_dim=16, sliding_window=7, layer_types=["full_attention"] * 2 + ["sliding_attention"] * 3),
    "ministral, window": small("ministral", head_dim=12, sliding_window=3),
    "ministral, no window": small("ministral", head_dim=12, sliding_window=None, rope_theta=1e6),
}
FIELDS = {
    "ministral": TINY,
}
GGUF = {
    "ministral": ("ministral", dict(sliding_window=None)),
}
