"""Makes the folder models: small models of images and text as transformers saves them, and what it computes.

Python 3.13, transformers 5.24.0, torch 2.15.0, safetensors 0.8.0:

    python vision/testdata/models.py              # makes the folder
    python vision/testdata/models.py adapter DIR  # PEFT loads what Model.SaveAdapter wrote
    python vision/testdata/models.py saved DIR    # transformers loads what Model.Save wrote
    python vision/testdata/models.py videos       # makes the files video.json of the models that are there
    python vision/testdata/models.py towers       # makes the gradients of towers in the files golden.json that are there

models/NAME has the files of save_pretrained, weights in bfloat16, and golden.json: the tokens of two sequences with three images, of
which the pixels are numbers that the test makes too, the mean loss of the labels, the logits of the last row of each and, where images
have grids of patches, 6 tokens that generate writes behind it and the logits of the last of them; for each parameter that is not of the tower the norm of the loss's gradient and
its product with numbers that the test makes too; in float64. video.json has the same of two sequences with two videos and an image between
them, where the token of videos is VIDEO.

adapter: SNUG_SAVE=DIR go test -run TestModelAdapterForPEFT ./vision writes the folders; saved: TestModelSaves does.
"""

import copy
import json
import pathlib
import shutil
import sys

import torch
import transformers

from transformers.models.llava_next.modeling_llava_next import select_best_resolution

from towers import SHAPE, numbers, spelled

HERE = pathlib.Path(__file__).parent
TEXT = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, intermediate_size=24, vocab_size=20, head_dim=8)
IMAGE, VIDEO = 5, 10


def models():
    t = transformers
    tower = dict(model_type="clip_vision_model", **SHAPE)
    llava = dict(vision_config=tower, image_token_index=IMAGE, image_seq_length=9)
    yield "llava", t.LlavaForConditionalGeneration(t.LlavaConfig(text_config=dict(model_type="llama", **TEXT), **llava)), [9] * 3
    yield "llava-mistral", t.LlavaForConditionalGeneration(t.LlavaConfig(
        text_config=dict(model_type="mistral", **TEXT), vision_feature_layer=-1, vision_feature_select_strategy="full",
        multimodal_projector_bias=False, projector_hidden_act="relu", **llava)), [10] * 3
    square = dict(SHAPE, model_type="siglip_vision_model", image_size=16, vision_use_head=False)
    yield "gemma3", t.Gemma3ForConditionalGeneration(t.Gemma3Config(
        text_config=dict(TEXT, layer_types=["sliding_attention", "full_attention"], sliding_window=5, query_pre_attn_scalar=8),
        vision_config=square, image_token_index=IMAGE, mm_tokens_per_image=4, boi_token_index=17, eoi_token_index=18)), [4] * 3
    yield "paligemma", t.PaliGemmaForConditionalGeneration(t.PaliGemmaConfig(
        text_config=dict(TEXT, model_type="gemma"), vision_config=square, image_token_index=IMAGE, projection_dim=16)), [16] * 3
    yield "paligemma2", t.PaliGemmaForConditionalGeneration(t.PaliGemmaConfig(
        text_config=dict(TEXT, model_type="gemma2", query_pre_attn_scalar=8, sliding_window=7, layer_types=["sliding_attention", "full_attention"]),
        vision_config=square, image_token_index=IMAGE, projection_dim=16)), [16] * 3
    text = {k: v for k, v in TEXT.items() if k != "head_dim"} | dict(rope_parameters=dict(rope_type="default", rope_theta=1e4, mrope_section=[1, 1, 2]))
    tower = dict(depth=3, hidden_size=16, intermediate_size=24, num_heads=2, patch_size=2, out_hidden_size=16)
    grids = [(1, 4, 6), (1, 8, 4), (1, 10, 6)]
    yield "qwen2_5_vl", t.Qwen2_5_VLForConditionalGeneration(t.Qwen2_5_VLConfig(
        text_config=text, vision_config=dict(tower, window_size=8, fullatt_block_indexes=[1]), image_token_id=IMAGE)), grids
    tiles = dict(text_config=dict(TEXT, model_type="llama"), image_token_id=IMAGE, scale_factor=2)
    shape = dict(SHAPE, image_size=16)
    yield "idefics3", t.Idefics3ForConditionalGeneration(t.Idefics3Config(vision_config=shape, **tiles)), [[4] * 3, [4], [4] * 2]
    yield "smolvlm", t.SmolVLMForConditionalGeneration(t.SmolVLMConfig(vision_config=dict(shape, num_hidden_layers=1), **tiles)), [[4] * 3, [4], [4] * 2]
    m = t.LlavaNextForConditionalGeneration(t.LlavaNextConfig(
        text_config=dict(model_type="llama", **TEXT), vision_config=dict(model_type="clip_vision_model", **SHAPE), image_token_index=IMAGE,
        image_grid_pinpoints=[[13, 26], [26, 13], [26, 26], [13, 39]]))
    yield "llava_next", m, [lines(m, size) for size in ((10, 40), (40, 30), (26, 20))]
    text = dict(TEXT, num_hidden_layers=3, rope_parameters=dict(rope_type="default", rope_theta=1e4, mrope_section=[2, 1, 1], mrope_interleaved=True))
    yield "qwen3_vl", t.Qwen3VLForConditionalGeneration(t.Qwen3VLConfig(
        text_config=text, vision_config=dict(tower, depth=4, num_position_embeddings=16, deepstack_visual_indexes=[0, 2]), image_token_id=IMAGE)), grids
    text = {k: v for k, v in TEXT.items() if k != "head_dim"} | dict(rope_parameters=dict(rope_type="default", rope_theta=1e4, mrope_section=[1, 1, 2]))
    yield "qwen2_vl", t.Qwen2VLForConditionalGeneration(t.Qwen2VLConfig(
        text_config=text, image_token_id=IMAGE, vision_config=dict(depth=2, embed_dim=16, mlp_ratio=2, num_heads=2, patch_size=2, hidden_size=16))), grids


def lines(m, size):
    """An image of a height and a width for LLaVA-NeXT."""
    best, side = select_best_resolution(size, m.config.image_grid_pinpoints), m.config.vision_config.image_size
    rows, columns = best[0] // side, best[1] // side
    x = torch.zeros(rows * columns + 1, 3, side, side)
    n = m.model.get_image_features(x, torch.tensor([size])).pooler_output[0].shape[0]
    return dict(size=size, rows=rows, columns=columns, tokens=n)


def tokens_of(image):
    """Of an image of so many tokens, of a grid of patches of which 4 are a token, of a list of tiles with text between them, or of lines."""
    if isinstance(image, dict):
        return [IMAGE] * image["tokens"]
    if isinstance(image, list):
        return [t for n in image for t in [11] + [IMAGE] * n][1:]
    return [IMAGE] * (image if isinstance(image, int) else image[0] * image[1] * image[2] // 4)


def sequences(images):
    a, b, c = map(tokens_of, images)
    return [[1, 7, *a, 8, 3, *b, 4, 9, 2], [1, *c, 6, 2]]


def labels(tokens):
    """Of each token the next one, and -100 where that is of an image."""
    return [t if t != IMAGE else -100 for t in tokens[1:]] + [-100]


def prefix(tokens):
    """The tokens of a PaliGemma that see each other: to the second behind the last image."""
    return len(tokens) - tokens[::-1].index(IMAGE) + 1


def pixels(m, number, images, tokens):
    """The inputs for images, of which number is that of the first."""
    types = torch.tensor([[int(t == IMAGE) for t in tokens]])
    side = getattr(m.config.vision_config, "image_size", None)
    if isinstance(images[0], list):
        return dict(pixel_values=torch.cat([numbers(1000 + number + i, (1, len(tiles), 3, side, side)) for i, tiles in enumerate(images)], 1))
    if isinstance(images[0], dict):
        x = torch.cat([numbers(1000 + number + i, (of["rows"] * of["columns"] + 1, 3, side, side)) for i, of in enumerate(images)])
        return dict(pixel_values=x, image_sizes=torch.tensor([of["size"] for of in images]))
    if isinstance(images[0], int):
        x = torch.stack([numbers(1000 + number + i, (3, side, side)) for i in range(len(images))])
        if m.config.model_type == "paligemma":
            types = torch.tensor([[int(i >= prefix(tokens)) for i in range(len(tokens))]])
        return dict(pixel_values=x, **(dict(token_type_ids=types) if m.config.model_type != "llava" else {}))
    patch = m.config.vision_config.patch_size
    x = torch.cat([numbers(1000 + number + i, (g[1] * g[2], 3 * 2 * patch * patch)) for i, g in enumerate(images)])
    return dict(pixel_values=x, image_grid_thw=torch.tensor(images), mm_token_type_ids=types)


def golden(m, images):
    total, out = 0, dict(tokens=[], logits=[])
    if isinstance(images[0], tuple):
        out["grids"] = images
    if isinstance(images[0], list):
        out["tiles"] = [len(tiles) for tiles in images]
    if isinstance(images[0], dict):
        out["lines"] = images
    targets = sum(t >= 0 for s in sequences(images) for t in labels(s))
    for tokens, at, n in zip(sequences(images), (0, 2), (2, 1)):
        more = pixels(m, at, images[at : at + n], tokens)
        logits = m(input_ids=torch.tensor([tokens]), **more).logits[0]
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(labels(tokens)), reduction="sum") / targets
        loss.backward()
        total += loss.item()
        if "grids" in out:
            text = m.generate(torch.tensor([tokens]), max_new_tokens=6, do_sample=False, eos_token_id=None, output_logits=True, return_dict_in_generate=True, **more)
            out.setdefault("written", []).append(dict(tokens=text.sequences[0, len(tokens):].tolist(), logits=text.logits[-1][0].tolist()))
        out["tokens"].append(tokens)
        out["logits"] += logits[-1].tolist()
    return dict(out, loss=total)


def deep(m, folder, images, indexes):
    """The loss where other blocks are added to the text."""
    config = copy.deepcopy(m.config)
    config.vision_config.deepstack_visual_indexes = indexes
    return golden(type(m).from_pretrained(folder, config=config, dtype=torch.float64), images)["loss"]


def tower(m, names):
    """The gradients of the tower's parameters."""
    of = lambda n: "vision_tower" in n or "vision_model" in n or "visual." in n and "merger" not in n
    params = sorted(((names[n], p) for n, p in m.named_parameters() if of(n) and p.grad is not None), key=lambda of: of[0])
    return {n: [float("%.9g" % v) for v in (p.grad.norm(), (p.grad * numbers(5000 + i, p.shape)).sum())] for i, (n, p) in enumerate(params)}


def towers():
    for name, m, images in models():
        folder = HERE / "models" / name
        old = json.loads((folder / "golden.json").read_text())
        if name not in ("llava-mistral", "paligemma2"):
            m = type(m).from_pretrained(folder, dtype=torch.float64)
            golden(m, images)
            (folder / "golden.json").write_text(json.dumps(dict(old, tower=tower(m, spelled(m, folder))), indent=0))


def make():
    shutil.rmtree(HERE / "models", ignore_errors=True)
    for at, (name, m, images) in enumerate(models()):
        folder = HERE / "models" / name
        with torch.no_grad():
            for i, (n, p) in enumerate(sorted(m.named_parameters())):
                one = ("norm" in n or "ln_q" in n) and n.endswith("weight") or "layrnorm" in n and n.endswith("weight")
                p.copy_((numbers(100 * at + i, p.shape) / 2 + one).to(torch.bfloat16))
        m.to(torch.bfloat16).save_pretrained(folder)
        m = type(m).from_pretrained(folder, dtype=torch.float64)  # with the angles of the rope in float64
        out, names = golden(m, images), spelled(m, folder)
        params = sorted(((names[n], p) for n, p in m.named_parameters() if "vision_tower" not in n and "vision_model" not in n and "image_newline" not in n and ("visual." not in n or "merger" in n)), key=lambda of: of[0])
        out["gradients"] = {n: [float("%.9g" % v) for v in (p.grad.norm(), (p.grad * numbers(2000 + i, p.shape)).sum())] for i, (n, p) in enumerate(params)}
        if name not in ("llava-mistral", "paligemma2"):
            out["tower"] = tower(m, names)
        if name == "qwen3_vl":
            out["deep"] = {str(at): deep(m, folder, images, at) for at in ([0, 3], [])}
        (folder / "golden.json").write_text(json.dumps(out, indent=0))


def video_golden(m, intervals):
    """Of two sequences: a video of three patches along time and an image, and a video of two."""
    apart = m.config.model_type == "qwen3_vl"
    clip = lambda t, n: [x for i in range(t) for x in [11] * apart + [VIDEO] * n + [12] * apart]
    videos, image = [(3, 4, 6), (2, 8, 4)], (1, 4, 6)
    lists = [[1, 7, *clip(3, 6), 8, 3, *[IMAGE] * 6, 4, 9, 2], [1, *clip(2, 8), 6, 2]]
    wanted = lambda tokens: [t if t not in (IMAGE, VIDEO) else -100 for t in tokens[1:]] + [-100]
    targets = sum(t >= 0 for s in lists for t in wanted(s))
    patch, rows = m.config.vision_config.patch_size, lambda number, g: numbers(1000 + number, (g[0] * g[1] * g[2], 3 * 2 * patch * patch))
    total, out = 0, dict(tokens=[], logits=[], written=[], videos=videos, image=image, intervals=intervals)
    for i, tokens in enumerate(lists):
        ids = torch.tensor([tokens])
        more = dict(pixel_values_videos=rows(2 * i, videos[i]), video_grid_thw=torch.tensor(videos[i : i + 1]), mm_token_type_ids=(ids == IMAGE).int() + 2 * (ids == VIDEO).int())
        if m.config.model_type == "qwen2_5_vl":
            more["second_per_grid_ts"] = torch.tensor(intervals[i : i + 1])
        if i == 0:
            more |= dict(pixel_values=rows(1, image), image_grid_thw=torch.tensor([image]))
        logits = m(input_ids=ids, **more).logits[0]
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(wanted(tokens)), reduction="sum") / targets
        loss.backward()
        total += loss.item()
        text = m.generate(ids, max_new_tokens=6, do_sample=False, eos_token_id=None, output_logits=True, return_dict_in_generate=True, **more)
        out["written"].append(dict(tokens=text.sequences[0, len(tokens) :].tolist(), logits=text.logits[-1][0].tolist()))
        out["tokens"].append(tokens)
        out["logits"] += logits[-1].tolist()
    return dict(out, loss=total)


def videos():
    for name in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl"):
        folder = HERE / "models" / name
        config = transformers.AutoConfig.from_pretrained(folder)
        config.video_token_id = VIDEO
        m = transformers.AutoModelForImageTextToText.from_pretrained(folder, config=config, dtype=torch.float64)
        out, names = video_golden(m, [0.73, 8.0]), spelled(m, folder)
        params = sorted(((names[n], p) for n, p in m.named_parameters() if "visual." not in n or "merger" in n), key=lambda of: of[0])
        out["gradients"] = {n: [float("%.9g" % v) for v in (p.grad.norm(), (p.grad * numbers(2000 + i, p.shape)).sum())] for i, (n, p) in enumerate(params)}
        (folder / "video.json").write_text(json.dumps(out, indent=0))


def check(what, saved):
    import peft

    images = {name: images for name, _, images in models()}
    for folder in sorted(pathlib.Path(saved).iterdir()):
        want = torch.tensor(json.loads((folder / "want.json").read_text())).double()
        base = HERE / "models" / folder.name if what == "adapter" else folder
        m, info = transformers.AutoModelForImageTextToText.from_pretrained(base, dtype=torch.float64, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"], info
        if what == "adapter":
            m = peft.PeftModel.from_pretrained(m, folder, is_trainable=True, autocast_adapter_dtype=False).double()
        got = torch.tensor(golden(m, images[folder.name])["logits"])
        error = ((got - want).abs().max() / got.abs().max()).item()
        print(f"{folder.name}: error {error:.1e}")
        assert error < 1e-5


if __name__ == "__main__":
    if sys.argv[1:] == ["videos"]:
        videos()
    elif sys.argv[1:] == ["towers"]:
        towers()
    elif len(sys.argv) > 1:
        check(*sys.argv[1:])
    else:
        make()
        videos()
