from .common import SOME, TINY, WHOLEHEADS

MODELS = {
    "exaone4": ("exaone4", {**WHOLEHEADS, "num_hidden_layers": 2, "pad_token_id": None, "tie_word_embeddings": False, "sliding_window": 5,
                            "layer_types": ["sliding_attention", "full_attention"], "rope_parameters": {"rope_type": "default", "rope_theta": 1e3}}),
}
ADAPTERS = {
    "exaone4_lora": ("exaone4", False, SOME),
}
FIELDS = {
    "exaone4": {**TINY, "sliding_window": 3, "num_hidden_layers": 4},
}
