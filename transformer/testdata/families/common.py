"""What several families share."""

import torch

# Of the models in the folder models.
SMALL = {"vocab_size": 48, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 10, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2}
WHOLEHEADS = {**{k: v for k, v in SMALL.items() if k != "head_dim"}, "hidden_size": 40}
ONE = {**SMALL, "num_hidden_layers": 1, "tie_word_embeddings": True}
NARROW = {k: v for k, v in {**SMALL, "hidden_size": 40, "intermediate_size": 36}.items() if k != "head_dim"}
LATENT = {**{k: v for k, v in SMALL.items() if k != "head_dim"}, "num_key_value_heads": 4, "kv_lora_rank": 12, "q_lora_rank": 14, "qk_rope_head_dim": 6,
          "qk_nope_head_dim": 8, "v_head_dim": 10, "rms_norm_eps": 1e-3, "pad_token_id": None, "tie_word_embeddings": False}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "rope_theta": 1e3}

# Of PEFT's adapters.
ALL = {"target_modules": "all-linear", "r": 4, "lora_alpha": 8}
SOME = {**ALL, "r": 2}

# Of the models of fields.py.
TINY = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 16, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
TINY_WHOLE = {k: v for k, v in TINY.items() if k != "head_dim"} | {"hidden_size": 24}
TINY_LATENT = {**{k: v for k, v in TINY.items() if k != "head_dim"}, "num_key_value_heads": 4, "kv_lora_rank": 6, "q_lora_rank": 8, "qk_rope_head_dim": 4,
               "qk_nope_head_dim": 6, "v_head_dim": 4}

# Of files config.json.
LLAMA3 = {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}
SPELLED = {"vocab_size": 96, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2}


def small(family, **fields):
    return {"model_type": family, **SPELLED, **fields}


def around_zero(key, p):
    """Initial values of norms that multiply by 1 + weight."""
    if zero := p.dim() == 1 and not key.endswith("bias"):
        p.normal_(0, 0.3)
    return zero


def clear_logits(model, config, tokens):
    """Whether the logits of an expert that computes and of one that does not differ by 0.08 in all rows."""
    out = model(tokens, use_cache=False, output_router_logits=True).router_logits
    ordered = [logits.sort(dim=-1, descending=True).values for logits in out]
    k = config.num_experts_per_tok
    return min((x[:, k - 1] - x[:, k]).min().item() for x in ordered) >= 0.08


def clear_groups(model, config, tokens):
    """Whether the scores of routers with groups of experts, or a correction, differ by 0.008: also of groups that are chosen and that are not."""
    gaps = []

    def look(router, _, out):
        scores = out[0].sigmoid() if hasattr(router, "e_score_correction_bias") else out[0].log_softmax(-1)
        scores = scores + getattr(router, "e_score_correction_bias", 0)
        if (config.n_group or 1) > 1 and config.topk_group < config.n_group:
            groups = scores.view(-1, config.n_group, scores.shape[-1] // config.n_group)
            of = groups.topk(2, dim=-1).values.sum(-1) if hasattr(router, "e_score_correction_bias") else groups.amax(-1)
            best = of.sort(dim=-1, descending=True)
            gaps.append((best.values[:, config.topk_group - 1] - best.values[:, config.topk_group]).min().item())
            chosen = torch.zeros_like(of).scatter(1, best.indices[:, :config.topk_group], 1).unsqueeze(-1).expand_as(groups)
            scores = groups.masked_fill(chosen == 0, -99).flatten(1)
        ordered, k = scores.sort(dim=-1, descending=True).values, config.num_experts_per_tok
        gaps.append((ordered[:, k - 1] - ordered[:, k]).min().item())

    hooks = [m.register_forward_hook(look) for m in model.modules() if type(m).__name__.endswith("Router")]
    model(tokens, use_cache=False)
    for hook in hooks:
        hook.remove()
    return not gaps or min(gaps) >= 0.008
