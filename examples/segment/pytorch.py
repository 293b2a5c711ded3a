"""The parts of this example in PyTorch, to compare: python pytorch.py DIR encode|train, for a DIR of the example, with transformers 5.24,
torch 2.15 and two threads."""

import resource
import sys
import time

import torch
import torch.nn.functional as F
import transformers

torch.set_num_threads(2)
steps, batch = 8, 2
model = transformers.SamModel.from_pretrained(sys.argv[1], dtype=torch.float32)
config, seconds = model.config, 0


def loss(y, target):
    masks, score = y.pred_masks[:, 0], y.iou_scores[:, 0]
    p = masks.sigmoid()
    q = p * (1 - target) + (1 - p) * target
    focal = ((0.25 * target + 0.75 * (1 - target)) * q**2 * F.binary_cross_entropy_with_logits(masks, target, reduction="none")).mean((2, 3))
    dice = 1 - (2 * (p * target).sum((2, 3)) + 1) / (p.sum((2, 3)) + target.sum((2, 3)) + 1)
    on, real = masks > 0, target > 0.5
    iou = (on & real).sum((2, 3)) / (on | real).sum((2, 3)).clamp(min=1)
    return (20 * focal + dice + (score - iou) ** 2).mean()


if sys.argv[2] == "encode":
    for step in range(steps):
        x, began = torch.randn(1, 3, config.vision_config.image_size, config.vision_config.image_size), time.time()
        model.get_image_embeddings(x)
        seconds += (time.time() - began) / (steps - 1) if step else 0
else:
    model.vision_encoder = None
    model.requires_grad_(True).shared_image_embedding.requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)
    side = config.prompt_encoder_config.image_embedding_size
    for step in range(steps):
        features, target = torch.randn(batch, config.vision_config.output_channels, side, side), (torch.rand(batch, 1, 4 * side, 4 * side) > 0.9).float()
        began = time.time()
        optimizer.zero_grad()
        loss(model(image_embeddings=features, input_boxes=torch.tensor([[[20.0, 20.0, 90.0, 90.0]]] * batch), multimask_output=False), target).backward()
        torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], 1)
        optimizer.step()
        seconds += (time.time() - began) / (steps - 1) if step else 0
print(f"resident {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB, {seconds:.2f} s")
