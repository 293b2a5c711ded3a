"""Makes the folder sam: small Segment Anything models as transformers saves them, and what they compute.

Python 3.13, transformers 5.24.0, torch 2.15.0, safetensors 0.8.0:

    python vision/testdata/sam.py              # makes the folder
    python vision/testdata/sam.py check DIR    # transformers loads what segment.Model.Save wrote

sam/NAME has the files of save_pretrained, weights in bfloat16, and golden.json: sums of the features of two images and of masks of a
photo, the losses of four steps of AdamW, and for each case of prompts the scores, sums of the masks, the loss, and for each parameter that
trains the norm of the loss's gradient and its product with numbers that the test makes too; in float64.

check: SNUG_SAVE=DIR go test -run TestSaves ./vision/segment writes the folders.
"""

import json
import pathlib
import shutil
import sys

import torch
import torch.nn.functional as F
import transformers

from towers import numbers, spelled

HERE = pathlib.Path(__file__).parent
SIDE = 40
SHAPES = {
    "rel": (
        dict(hidden_size=16, num_hidden_layers=3, num_attention_heads=2, mlp_dim=24, image_size=SIDE, patch_size=4, output_channels=16,
             window_size=4, global_attn_indexes=[1], num_pos_feats=8),
        dict(hidden_size=16, image_size=SIDE, patch_size=4, mask_input_channels=8),
        dict(hidden_size=16, mlp_dim=24, num_attention_heads=2, iou_head_hidden_dim=12)),
    "plain": (
        dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=SIDE, patch_size=4, output_channels=16, window_size=5,
             global_attn_indexes=[0], num_pos_feats=8, use_abs_pos=False, use_rel_pos=False, qkv_bias=False, hidden_act="relu", mlp_ratio=1.5),
        dict(hidden_size=16, image_size=SIDE, patch_size=4, mask_input_channels=4, hidden_act="relu"),
        dict(hidden_size=16, mlp_dim=24, num_attention_heads=4, num_hidden_layers=1, attention_downsample_rate=1, num_multimask_outputs=2,
             iou_head_depth=2, hidden_act="gelu")),
}
POINTS = torch.tensor([[[[3.0, 7.0], [30.0, 12.5]]], [[[20.0, 20.0], [0.0, 0.0]]]])
LABELS = torch.tensor([[[1, 0]], [[1, -10]]])
BOXES = torch.tensor([[[2.0, 5.0, 31.0, 38.5]], [[10.0, 0.0, 25.0, 12.0]]])
CASES = {  # prompts, whether there are several masks, and the side of the targets
    "points": (dict(input_points=POINTS, input_labels=LABELS), False, 40),
    "boxes": (dict(input_boxes=BOXES), True, 64),
    "both": (dict(input_points=POINTS[:1].repeat(2, 1, 1, 1), input_labels=LABELS[:1].repeat(2, 1, 1), input_boxes=BOXES), True, 40),
    "masks": (dict(input_points=POINTS, input_labels=LABELS, input_masks=numbers(7000, (2, 1, 40, 40))), False, 40),
    "none": (dict(), False, 40),
}


def target(side):
    """Discs, as the test draws them too."""
    at = (torch.arange(side).double() + 0.5) / side
    return torch.stack([((at[:, None] - y) ** 2 + (at[None] - x) ** 2 < r * r).double() for y, x, r in ((0.4, 0.5, 0.3), (0.7, 0.3, 0.2))])


def loss(masks, scores, t):
    """20 times the focal loss, the Dice loss and the squared error of the scores; of several masks the best counts."""
    low = masks
    if masks.shape[-1] != t.shape[-1]:
        masks = F.interpolate(masks, t.shape[-2:], mode="bilinear")
    t = t[:, None].expand_as(masks)
    p = masks.sigmoid()
    q = p * (1 - t) + (1 - p) * t
    focal = ((0.25 * t + 0.75 * (1 - t)) * q**2 * F.binary_cross_entropy_with_logits(masks, t, reduction="none")).mean((2, 3))
    dice = 1 - (2 * (p * t).sum((2, 3)) + 1) / (p.sum((2, 3)) + t.sum((2, 3)) + 1)
    on, real = masks > 0, t > 0.5
    iou = (on & real).sum((2, 3)) / (on | real).sum((2, 3)).clamp(min=1)
    return ((20 * focal + dice).min(1).values + ((scores - iou) ** 2).mean(1)).mean()


def sums(x, number):
    x = x.detach().flatten()
    return [float("%.10g" % v) for v in (x.norm(), (x * numbers(number, x.shape)).sum())]


def images():
    return numbers(1000, (2, 3, SIDE, SIDE))


def run(m, features, name):
    prompts, several, side = CASES[name]
    y = m(image_embeddings=features, multimask_output=several, **{k: v.double() if v.is_floating_point() else v for k, v in prompts.items()})
    return y.pred_masks[:, 0], y.iou_scores[:, 0], side


def golden(m, names):
    out = dict(cases={})
    with torch.no_grad():
        features = m.get_image_embeddings(images())
    out["features"] = sums(features.permute(0, 2, 3, 1), 3000)
    params = sorted(((names[n], p) for n, p in m.named_parameters() if "vision_encoder" not in n and "positional_embedding" not in n), key=lambda of: of[0])
    for name in CASES:
        m.zero_grad()
        masks, scores, side = run(m, features, name)
        l = loss(masks, scores, target(side))
        l.backward()
        if name == "points":
            photo = transformers.SamImageProcessor(pad_size=dict(height=SIDE, width=SIDE)).post_process_masks([masks], [[53, 41]], [[40, 31]], binarize=False)
            out["photo"] = sums(photo[0], 5000)
        out["cases"][name] = dict(masks=sums(masks, 4000), scores=scores.flatten().tolist(), loss=l.item(), gradients={
            n: sums(p.grad if p.grad is not None else torch.zeros_like(p), 2000 + i) for i, (n, p) in enumerate(params)})
    optimizer, out["steps"] = torch.optim.AdamW([p for _, p in params], 1e-3, weight_decay=0), []
    for _ in range(4):
        optimizer.zero_grad()
        masks, scores, side = run(m, features, "boxes")
        l = loss(masks, scores, target(side))
        l.backward()
        optimizer.step()
        out["steps"].append(l.item())
    return out


def make():
    shutil.rmtree(HERE / "sam", ignore_errors=True)
    t = transformers
    for at, (name, (vision, prompt, decoder)) in enumerate(SHAPES.items()):
        m = t.SamModel(t.SamConfig(vision_config=vision, prompt_encoder_config=prompt, mask_decoder_config=decoder))
        folder = HERE / "sam" / name
        with torch.no_grad():
            for i, (n, p) in enumerate(sorted(m.named_parameters())):
                one = "norm" in n and n.endswith("weight")
                p.copy_((numbers(100 * at + i, p.shape) / 2 + one).to(torch.bfloat16))
        m.to(torch.bfloat16).save_pretrained(folder)
        m = type(m).from_pretrained(folder, dtype=torch.float64, attn_implementation="sdpa")  # whose softmax is in float64 too
        (folder / "golden.json").write_text(json.dumps(golden(m, spelled(m, folder)), indent=0))


def check(saved):
    for folder in sorted(pathlib.Path(saved).iterdir()):
        want = json.loads((folder / "want.json").read_text())
        m, info = transformers.SamModel.from_pretrained(folder, dtype=torch.float64, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"], info
        with torch.no_grad():
            masks, scores, _ = run(m, m.get_image_embeddings(images()), "boxes")
        for got, of in (masks, "masks"), (scores, "scores"):
            error = ((got.flatten() - torch.tensor(want[of]).double()).abs().max() / got.abs().max()).item()
            print(f"{folder.name}: error of {of} {error:.1e}")
            assert error < 1e-5


if __name__ == "__main__":
    if sys.argv[1:2] == ["check"]:
        check(sys.argv[2])
    else:
        make()
