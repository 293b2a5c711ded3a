"""Goldens of videos in package vision: what transformers makes of frames. Writes videos.json beside it.

    pip install torch==2.15.0 torchvision==0.29.2 transformers==5.24.0 pillow==13.0.0
    python videos.py

Frames are made by the same formula here and in video_test.go. Values are kept as checksums: the first 16 digits of SHA-256 of float32 in little endian.
"""

import hashlib
import itertools
import json
import pathlib
import tempfile
import types

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models
from transformers.video_utils import VideoMetadata

HERE = pathlib.Path(__file__).parent
QWEN2 = {"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 1568, "max_pixels": 15680, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2}
QWEN3 = {"video_processor_type": "Qwen3VLVideoProcessor", "size": {"shortest_edge": 4096, "longest_edge": 40960}, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
IMAGE = {"image_processor_type": "Qwen2VLImageProcessor"}
FOLDERS = {
    "qwen2-vl": ("Qwen2VLProcessor", {"preprocessor_config.json": QWEN2}),
    "qwen2.5-vl": ("Qwen2_5_VLProcessor", {"preprocessor_config.json": IMAGE, "video_preprocessor_config.json": {
        "video_processor_type": "Qwen2VLVideoProcessor", "size": {"shortest_edge": 784, "longest_edge": 9408}, "cap_pixels_per_frame": True, "max_video_tokens": 40}}),
    "qwen2.5-vl-defaults": ("Qwen2_5_VLProcessor", {"preprocessor_config.json": IMAGE, "video_preprocessor_config.json": {"video_processor_type": "Qwen2VLVideoProcessor"}}),
    "qwen3-vl": ("Qwen3VLProcessor", {"preprocessor_config.json": IMAGE, "video_preprocessor_config.json": QWEN3}),
    "qwen3-vl-capped": ("Qwen3VLProcessor", {"preprocessor_config.json": IMAGE, "video_preprocessor_config.json": QWEN3 | {"cap_pixels_per_frame": True, "max_video_tokens": 6}}),
    "qwen3-vl-nested": ("Qwen3VLProcessor", {"processor_config.json": {"image_processor": IMAGE, "video_processor": QWEN3 | {"temporal_patch_size": 3, "patch_size": 8}}}),
}
VIDEOS = [  # frames, width, height, frames a second, frames of the clip; those that are taken are the first ones and the last one
    (1, 60, 45, 2.0, 1), (2, 45, 80, None, 2), (5, 70, 42, 2.0, 5), (7, 200, 30, 29.97, 100), (4, 300, 3, 1.0, 4), (6, 20, 24, 0.5, 9), (3, 1, 1, 24.0, 3),
]


def frame(i, width, height):
    y, x, c = np.mgrid[:height, :width, :3]
    return ((x * 7 + y * 13 + c * 50 + x * y // 5 + 31 * i) % 256).astype(np.uint8)


def videos():
    seen = []

    class Words(transformers.PreTrainedTokenizerFast):
        def __call__(self, text=None, *args, **kwargs):
            seen.append(text[0])
            return super().__call__(text, *args, **kwargs)

    words = Words(tokenizer_object=Tokenizer(models.BPE(unk_token="<unk>", vocab={"<unk>": 0}, merges=[])), extra_special_tokens={"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"})
    for name, (kind, files) in FOLDERS.items():
        with tempfile.TemporaryDirectory() as folder:
            for file, content in files.items():
                (pathlib.Path(folder) / file).write_text(json.dumps(content))
            images, processor = [auto.from_pretrained(folder) for auto in (transformers.AutoImageProcessor, transformers.AutoVideoProcessor)]
        whole = getattr(transformers, kind)(image_processor=images, tokenizer=words, video_processor=processor)
        row = {"name": name, "class": kind, "files": files, "rows": []}
        for n, width, height, fps, total in VIDEOS if "defaults" not in name else VIDEOS[2:3]:
            taken = list(range(n - 1)) + [total - 1]
            clip = torch.from_numpy(np.stack([frame(i, width, height) for i in taken])).permute(0, 3, 1, 2).contiguous()
            case = {"width": width, "height": height, "fps": fps or 0, "total": total, "frames": list(taken)}
            try:
                out = whole(text=["a<|vision_start|><|video_pad|><|vision_end|>b"], videos=[clip], do_sample_frames=False, return_tensors="pt",
                            video_metadata=[dict(total_num_frames=total, fps=fps, frames_indices=taken)])
            except ValueError:
                row["rows"].append(case | {"refused": True})
                continue
            values = out["pixel_values_videos"]
            text = hashlib.sha256(seen[-1].encode()).hexdigest()[:16]
            case |= {"text": text, "grid": out["video_grid_thw"][0].tolist(), "sum": hashlib.sha256(values.contiguous().numpy().tobytes()).hexdigest()[:16]}
            if "second_per_grid_ts" in out:
                case["interval"] = float(out["second_per_grid_ts"][0])
            row["rows"].append(case)
        yield row


def samples():
    for kind, (total, fps, take) in itertools.product(("Qwen2VLVideoProcessor", "Qwen3VLVideoProcessor"), [(5, 1, 2.0), (100, 25, 2.0), (301, 29.97, 2.0), (900, 30, 2.0), (64, 8, 0.3), (50, 10, 20.0)]):
        p = getattr(transformers, kind)(max_frames=16)
        taken = p.sample_frames(VideoMetadata(total_num_frames=total, fps=fps), fps=take, **({"max_frames": 16} if "2" in kind else {}))
        yield {"type": kind, "total": total, "fps": fps, "take": take, "frames": [int(i) for i in taken]}


def positions():
    """Text is 1, an image 9 and a video 10, in squares of 4 patches."""
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

    for model, per_second, form, grids, intervals in [
        (Qwen2VLModel, 0, "tvti", [(3, 4, 6), (1, 2, 8)], [1.0]),
        (Qwen2_5_VLModel, 2.0, "tvtti", [(3, 4, 6), (1, 2, 8)], [0.73]),
        (Qwen2_5_VLModel, 4, "ivtvt", [(1, 2, 2), (4, 2, 4), (2, 4, 4)], [1 / 3, 8.0]),
        (Qwen2_5_VLModel, 25, "tv", [(3, 4, 6)], [1.9]),
        (Qwen3VLModel, 0, "tvtitv", [(3, 4, 6), (1, 2, 8), (2, 2, 4)], [1.0, 1.0]),
    ]:
        ids, left = [], list(grids)
        for c in form:
            if c == "t":
                ids += [1]
                continue
            t, h, w = left.pop(0)
            part = [9 if c == "i" else 10] * (h * w // 4)
            ids += [1] + (part + [1]) * t if model is Qwen3VLModel and c == "v" else part * t
        ids = torch.tensor([ids + [1]])  # and the token of text that is next
        vision = types.SimpleNamespace(spatial_merge_size=2, tokens_per_second=per_second)
        m = types.SimpleNamespace(config=types.SimpleNamespace(vision_config=vision))
        m.get_vision_position_ids = types.MethodType(model.get_vision_position_ids, m)
        of = lambda kind: torch.tensor([g for g, c in zip(grids, form.replace("t", "")) if c == kind]) if kind in form else None
        p, _ = model.get_rope_index(m, ids, (ids == 9).int() + 2 * (ids == 10).int(), image_grid_thw=of("i"), video_grid_thw=of("v"), second_per_grid_ts=torch.tensor(intervals))
        seconds = iter(intervals)
        yield {"ids": ids[0, :-1].tolist(), "apart": model is Qwen3VLModel, "persecond": per_second, "grids": grids,
               "intervals": [next(seconds) if c == "v" else 0 for c in form.replace("t", "")], "positions": p[:, 0, :-1].tolist(), "next": int(p[0, 0, -1])}


golden = {"videos": list(videos()), "samples": list(samples()), "positions": list(positions())}
(HERE / "videos.json").write_text("{\n" + ",\n".join(json.dumps(k) + ": [\n" + ",\n".join(json.dumps(v) for v in rows) + "\n]" for k, rows in golden.items()) + "\n}\n")
