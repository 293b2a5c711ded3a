from .common import ALL, LATENT, TINY_LATENT

MODELS = {
    "youtu": ("youtu", {**LATENT, "num_hidden_layers": 1, "initializer_range": 0.02, "tie_word_embeddings": True}),
}
ADAPTERS = {
    "youtu_nf4": ("youtu", True, ALL),
}
FIELDS = {
    "youtu": TINY_LATENT,
}
