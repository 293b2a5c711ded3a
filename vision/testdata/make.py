"""Goldens of package vision: what transformers, Pillow and torchvision make of small images. Writes golden.json beside it.

    pip install torch==2.15.0 torchvision==0.29.2 transformers==5.24.0 pillow==13.0.0
    python make.py

Images are made by the same formulas here and in golden_test.go. Pixels and values are kept as checksums: the first 16 digits of
SHA-256 of the bytes of RGB, or of float32 in little endian.
"""

import base64
import hashlib
import io
import json
import os
import struct
import tempfile
import types
import zlib

import numpy as np
import PIL
import torch
import torchvision
import transformers
from PIL import Image, ImageOps, ImageSequence
from torchvision.transforms.v2 import functional as tvF
from transformers import AutoImageProcessor, PreTrainedTokenizerFast
from transformers.image_transforms import convert_to_rgb
from transformers.image_utils import load_image, pil_torch_interpolation_mapping


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


class Random:
    """The numbers of Numerical Recipes' generator, of which the upper bits are used."""

    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = (self.state * 1664525 + 1013904223) % 2**32
        return (self.state >> 16) % n


def pixels(kind, width, height, channels=3):
    if kind == "noise":
        r = Random(width * 1000 + height)
        return np.array([r.below(256) for _ in range(width * height * channels)], np.uint8).reshape(height, width, channels)
    y, x, c = np.mgrid[:height, :width, :channels]
    return ((x * 7 + y * 13 + c * 50 + x * y // 5) % 256).astype(np.uint8)


def resizes():
    sizes = [(1, 1, 5, 4), (5, 4, 1, 1), (31, 17, 12, 40), (17, 31, 40, 12), (40, 30, 39, 11), (3, 400, 24, 24), (400, 3, 24, 24), (33, 20, 33, 9), (50, 41, 100, 83)]
    for w, h, to_w, to_h in sizes:
        for kind in ("noise", "smooth"):
            a = pixels(kind, w, h)
            for f in range(6):
                row = {"kind": kind, "width": w, "height": h, "to": [to_w, to_h], "filter": f}
                yield row | {"backend": 1, "sum": digest(np.array(Image.fromarray(a).resize((to_w, to_h), f)).tobytes())}
                if f not in (4, 5):
                    t = torch.from_numpy(a).permute(2, 0, 1).contiguous()
                    try:
                        t = tvF.resize(t, [to_h, to_w], interpolation=pil_torch_interpolation_mapping[f], antialias=True)
                    except RuntimeError:  # torch 2.15 fails at an assertion for images of one pixel
                        continue
                    yield row | {"backend": 0, "sum": digest(t.permute(1, 2, 0).contiguous().numpy().tobytes())}


def deep_gray():
    """A PNG of 16-bit gray with a transparent level, which Pillow does not write."""
    rows = pixels("noise", 5, 4, 2)
    rows[..., 0] //= 100
    out = b"\x89PNG\r\n\x1a\n"
    for kind, data in [
        (b"IHDR", struct.pack(">IIBBBBB", 5, 4, 16, 0, 0, 0, 0)), (b"tRNS", rows[0, 0].tobytes()),
        (b"IDAT", zlib.compress(b"".join(b"\0" + r.tobytes() for r in rows))), (b"IEND", b""),
    ]:
        out += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return out


def jpegs():
    """JPEG files of the kinds that cameras and programs write. What Pillow does not write is made by changing headers."""

    def save(a, **options):
        b = io.BytesIO()
        Image.fromarray(a, "CMYK" if a.shape[-1] == 4 else None).save(b, "JPEG", **options)
        return b.getvalue()

    def frame(file, width, height, sampling):
        """The same blocks in a frame of another form, with as many units."""
        i = next(file.index(m) for m in (b"\xff\xc0\0\x11", b"\xff\xc2\0\x11") if m in file)
        return file[: i + 5] + struct.pack(">HH", height, width) + file[i + 9 : i + 11] + bytes([sampling]) + file[i + 12 :]

    def wide(file):
        """With quantization tables of 16 bits, in an extended frame, and with fill bytes before markers."""
        while (i := file.find(b"\xff\xdb\0\x43")) >= 0:
            file = file[:i] + b"\xff\xff\xff\xdb\0\x83" + bytes([16 | file[i + 4]]) + bytes(v for q in file[i + 5 : i + 69] for v in (0, q)) + file[i + 69 :]
        return file.replace(b"\xff\xc0\0\x11", b"\xff\xff\xc1\0\x11")

    for s in range(3):
        yield f"noise-{s}", save(pixels("noise", 21, 18), subsampling=s, quality=100)
        yield f"coarse-{s}", save(pixels("noise", 35, 33), subsampling=s, quality=1 + s)
        yield f"restarts-{s}", save(pixels("smooth", 67, 19), subsampling=s, restart_marker_blocks=2)
        yield f"progressive-restarts-{s}", save(pixels("smooth", 35, 33), subsampling=s, quality=93, progressive=True, restart_marker_blocks=3)
    for progressive in (False, True):
        kind = "progressive-" * progressive
        yield kind + "noise", save(pixels("noise", 23, 17), quality=97, progressive=progressive, optimize=True)
        yield kind + "440", frame(save(pixels("smooth", 32, 32), subsampling=1, progressive=progressive), 32, 32, 0x12)
        yield kind + "411", frame(save(pixels("smooth", 31, 32), subsampling=2, progressive=progressive), 61, 16, 0x41)
        inks = save(pixels("smooth", 21, 13, 4), progressive=progressive)
        yield kind + "ycck", inks.replace(b"Adobe\0\x64\0\0\0\0\0", b"Adobe\0\x64\0\0\0\0\2")
    for w, h in ((1, 1), (8, 8), (9, 17)):
        yield f"{w}x{h}", save(pixels("smooth", w, h), quality=90, optimize=True)
    yield "wide", wide(save(pixels("noise", 17, 20), quality=40, optimize=True))


def files():
    def image(mode, w, h):
        bands = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4, "CMYK": 4}[mode]
        a = pixels("smooth" if mode != "RGBA" else "noise", w, h, bands)
        return Image.fromarray(a[..., 0] if bands == 1 else a, mode if mode in ("RGBA", "CMYK", "LA") else None)

    def exif(orientation):
        e = Image.Exif()
        e[0x112] = orientation
        return e.tobytes()

    rgb, gray = image("RGB", 19, 14), image("L", 19, 14)
    palette = rgb.quantize(11)
    i16 = Image.fromarray((pixels("noise", 19, 14, 2).astype(np.uint16) @ np.array([1, 2], np.uint16)).astype(np.uint16) % 600)
    rows = [
        ("png-rgb", rgb, "PNG", {}), ("png-gray", gray, "PNG", {}), ("png-rgba", image("RGBA", 19, 14), "PNG", {}), ("png-la", image("LA", 19, 14), "PNG", {}),
        ("png-16-bit-gray", i16, "PNG", {}), ("png-palette", palette, "PNG", {}), ("png-one-bit", gray.convert("1"), "PNG", {}),
        ("png-palette-transparent", palette, "PNG", {"transparency": 3}), ("png-gray-transparent", gray, "PNG", {"transparency": 50}),
        ("png-1x1", image("RGB", 1, 1), "PNG", {}), ("png-400x3", image("RGB", 400, 3), "PNG", {}), ("png-exif", rgb, "PNG", {"exif": exif(6)}),
        ("gif", palette, "GIF", {}), ("gif-transparent", palette, "GIF", {"transparency": 2}),
        ("bmp", rgb, "BMP", {}), ("bmp-palette", palette, "BMP", {}), ("bmp-rgba", image("RGBA", 19, 14), "BMP", {}),
        ("tiff", rgb, "TIFF", {}), ("tiff-lzw-gray", gray, "TIFF", {"compression": "tiff_lzw"}), ("tiff-deflate-rgba", image("RGBA", 19, 14), "TIFF", {"compression": "tiff_adobe_deflate"}),
        ("tiff-16-bit-gray", i16, "TIFF", {}),
        ("webp-lossless", rgb, "WEBP", {"lossless": True}), ("webp-lossy", rgb, "WEBP", {"quality": 70}), ("webp-lossy-19x1", image("RGB", 19, 1), "WEBP", {}),
        ("webp-alpha", image("RGBA", 19, 14), "WEBP", {"quality": 60}), ("webp-exif", rgb, "WEBP", {"exif": exif(5), "lossless": True}),
    ]
    rows += [(f"png-exif-{o}", image("RGB", 5, 3), "PNG", {"exif": exif(o)}) for o in (2, 3, 4, 7, 8)]
    big = image("RGB", 33, 21)
    for s in range(3):
        rows.append((f"jpeg-subsampling-{s}", big, "JPEG", {"subsampling": s, "quality": 85}))
    rows += [
        ("jpeg-gray", image("L", 33, 21), "JPEG", {}), ("jpeg-progressive", big, "JPEG", {"progressive": True}), ("jpeg-cmyk", image("CMYK", 17, 9), "JPEG", {}),
        ("jpeg-exif", big, "JPEG", {"exif": exif(8)}), ("jpeg-3x2", image("RGB", 3, 2), "JPEG", {}), ("jpeg-rgb", image("RGB", 17, 9), "JPEG", {"keep_rgb": True}),
    ]
    rows += [(f"jpeg-noise-4x4-{s}", Image.fromarray(pixels("noise", 4, 4)), "JPEG", {"subsampling": s, "quality": 95}) for s in (1, 2)]
    rows.append(("png-16-bit-gray-transparent", deep_gray(), "PNG", None))
    rows += [(f"jpeg-{name}", file, "JPEG", None) for name, file in jpegs()]
    for name, im, form, options in rows:
        b = io.BytesIO(im if options is None else b"")
        if options is not None:
            im.save(b, form, **options)
            b.seek(0)
        a = np.array(load_image(Image.open(b)))
        row = {"name": name, "file": base64.b64encode(b.getvalue()).decode(), "width": a.shape[1], "height": a.shape[0], "sum": digest(a.tobytes())}
        row["white"] = digest(convert_to_rgb(ImageOps.exif_transpose(Image.open(b)), return_numpy=True).tobytes())
        yield row


def gif(seed):
    """A GIF with frames of all methods of disposal, with and without transparency, interlaced, beyond the screen."""
    r = Random(seed)
    width, height, bits = 3 + r.below(8), 3 + r.below(8), 3
    colours = lambda: bytes(r.below(256) for _ in range(3 << bits))
    shared = r.below(2)
    out = b"GIF89a" + struct.pack("<HHBBB", width, height, shared << 7 | bits - 1, r.below(1 << bits), 0)
    out += colours() if shared else b""
    for _ in range(5):
        if r.below(5):
            out += b"!\xf9\x04" + struct.pack("<BHB", r.below(4) << 2 | r.below(2), 5, r.below(1 << bits)) + b"\0"
        x, y = r.below(width), r.below(height)
        w, h = 1 + r.below(width - x), 1 + r.below(height - y)
        w += 3 * (r.below(8) == 0)
        own = not shared or r.below(3) == 0
        out += b"," + struct.pack("<HHHHB", x, y, w, h, own << 7 | (r.below(4) == 0) << 6 | bits - 1)
        out += colours() if own else b""
        codes, clear = [], 1 << bits
        for i in range(w * h):  # a clear code so often that codes keep their width
            codes += [clear] * (i % (clear - 2) == 0) + [r.below(clear)]
        value = sum(c << (bits + 1) * i for i, c in enumerate(codes + [clear + 1]))
        data = value.to_bytes((len(codes) + 1) * (bits + 1) // 8 + 1, "little")
        out += bytes([bits]) + b"".join(bytes([len(data[i : i + 255])]) + data[i : i + 255] for i in range(0, len(data), 255)) + b"\0"
    return out + b";"


def animations():
    for seed in range(12):
        data = gif(seed)
        frames = [np.array(f.convert("RGB")) for f in ImageSequence.Iterator(Image.open(io.BytesIO(data)))]
        yield {"file": base64.b64encode(data).decode(), "sums": [digest(f.tobytes()) for f in frames], "sizes": [[f.shape[1], f.shape[0]] for f in frames]}


CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
PREPROCESSORS = {
    "clip": CLIP | {"image_processor_type": "CLIPImageProcessor", "crop_size": {"height": 224, "width": 224}, "do_center_crop": True, "do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True, "resample": 3, "rescale_factor": 0.00392156862745098, "size": {"shortest_edge": 224}},
    "clip-first-form": CLIP | {"feature_extractor_type": "CLIPFeatureExtractor", "crop_size": 32, "do_center_crop": True, "resample": 3, "size": 33},
    "clip-odd": {"image_processor_type": "CLIPImageProcessorFast", "crop_size": {"height": 50, "width": 71}, "size": {"shortest_edge": 31}, "do_pad": True, "pad_size": {"height": 61, "width": 80}},
    "clip-edges": {"image_processor_type": "CLIPImageProcessor", "do_center_crop": False, "size": {"shortest_edge": 31, "longest_edge": 47}, "resample": 2},
    "clip-at-most": {"image_processor_type": "CLIPImageProcessor", "do_center_crop": False, "size": {"max_height": 131, "max_width": 147}, "resample": 1},
    "clip-not-resized": {"image_processor_type": "CLIPImageProcessor", "do_resize": False, "crop_size": {"height": 21, "width": 17}},
    "siglip": {"image_processor_type": "SiglipImageProcessor", "do_convert_rgb": None, "resample": 3, "size": {"height": 224, "width": 224}},
    "siglip-not-rescaled": {"image_processor_type": "SiglipImageProcessor", "size": [33, 44], "do_rescale": False, "image_mean": 0.5, "image_std": [3.0, 2.0, 1.5]},
    "siglip-not-normalized": {"image_processor_type": "SiglipImageProcessor", "size": {"height": 33, "width": 44}, "do_normalize": False},
    "vit": {"image_processor_type": "ViTImageProcessor", "size": 224, "resample": 2, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]},
    "deit": {"feature_extractor_type": "DeiTFeatureExtractor", "crop_size": 224, "do_center_crop": True, "do_normalize": True, "do_resize": True, "resample": 3, "size": 256, "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]},
    "deit-not-cropped": {"feature_extractor_type": "DeiTFeatureExtractor", "crop_size": 384, "do_center_crop": False, "do_normalize": True, "do_resize": True, "resample": 3, "size": 384, "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]},
    "deit-defaults": {"image_processor_type": "DeiTImageProcessor"},
    "dinov2": {"image_processor_type": "BitImageProcessor", "crop_size": {"height": 224, "width": 224}, "size": {"shortest_edge": 256}, "resample": 3, "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]},
    "qwen2-vl": CLIP | {"image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2VLProcessor", "min_pixels": 3136, "max_pixels": 40000, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2},
    "qwen3-vl": {"image_processor_type": "Qwen2VLImageProcessorFast", "processor_class": "Qwen3VLProcessor", "size": {"longest_edge": 16777216, "shortest_edge": 65536}, "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]},
    "gemma3": {"image_processor_type": "Gemma3ImageProcessor", "processor_class": "Gemma3Processor", "do_convert_rgb": None, "do_pan_and_scan": None, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "resample": 2, "size": {"height": 896, "width": 896}},
    "llava": {"image_processor_type": "LlavaImageProcessor", "processor_class": "LlavaProcessor", "do_pad": True, "size": {"shortest_edge": 70}, "crop_size": {"height": 56, "width": 56}},
    "llava-clip": CLIP | {"image_processor_type": "CLIPImageProcessor", "processor_class": "LlavaProcessor", "size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}, "resample": 3},
    "llava-next": {"image_processor_type": "LlavaNextImageProcessor", "processor_class": "LlavaNextProcessor", "size": {"shortest_edge": 56}, "crop_size": {"height": 56, "width": 56}, "image_grid_pinpoints": [[56, 112], [112, 56], [112, 112], [168, 56], [56, 168]]},
    "idefics3": {"image_processor_type": "Idefics3ImageProcessor", "processor_class": "Idefics3Processor", "do_image_splitting": True, "max_image_size": {"longest_edge": 64}, "size": {"longest_edge": 256}, "resample": 1},
    "smolvlm": {"image_processor_type": "SmolVLMImageProcessor", "processor_class": "SmolVLMProcessor", "do_image_splitting": True, "max_image_size": {"longest_edge": 96}, "size": {"longest_edge": 384}, "resample": 1},
    "smolvlm-not-split": {"image_processor_type": "SmolVLMImageProcessor", "processor_class": "SmolVLMProcessor", "do_image_splitting": False, "max_image_size": {"longest_edge": 64}, "size": {"longest_edge": 256}, "resample": 1},
    "paligemma": {"image_processor_type": "SiglipImageProcessor", "processor_class": "PaliGemmaProcessor", "size": {"height": 112, "width": 112}, "image_seq_length": 64, "resample": 3, "do_convert_rgb": None},
    "sam": {"image_processor_type": "SamImageProcessor", "size": {"longest_edge": 1024}, "pad_size": {"height": 1024, "width": 1024}, "resample": 2, "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]},
}
PROCESSORS = {
    "llava": {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
    "llava-clip": {"patch_size": 14, "vision_feature_select_strategy": "full", "num_additional_image_tokens": 0},
    "llava-next": {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
    "idefics3": {"image_seq_len": 5},
    "smolvlm": {"image_seq_len": 3},
    "smolvlm-not-split": {"image_seq_len": 3},
    "gemma3": {"image_seq_length": 7},
}
PROMPTS = {  # with two images
    "qwen2-vl": "a<|vision_start|><|image_pad|><|vision_end|>b<|vision_start|><|image_pad|><|vision_end|>",
    "qwen3-vl": "<|vision_start|><|image_pad|><|vision_end|><|vision_start|><|image_pad|><|vision_end|>c",
    "gemma3": "<start_of_image>one<start_of_image> two",
    "llava": "USER: <image> and <image>\nWhat?",
    "llava-clip": "<image><image>",
    "llava-next": "<image>\n<image>",
    "idefics3": "User:<image>x<image><end_of_utterance>",
    "smolvlm": "User:<image>x<image><end_of_utterance>",
    "smolvlm-not-split": "<image><image>",
    "paligemma": "<image><image>describe",
}
SIZES = [("noise", 60, 45), ("smooth", 45, 130), ("smooth", 1, 1), ("noise", 300, 3), ("smooth", 257, 211), ("noise", 70, 42), ("smooth", 70, 39)]


def expanded(name, processor_class, image_processor, images):
    """The text that the processor hands to its tokenizer."""
    from tokenizers import Tokenizer, models

    seen = []

    class Words(PreTrainedTokenizerFast):
        def __call__(self, text=None, *args, **kwargs):
            seen.append(text[0] if isinstance(text, list) else text)
            return super().__call__(text, *args, **kwargs)

    special = {"image_token": "<image>"}
    if "qwen" in name:
        special = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}
    if name == "gemma3":
        special = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    if "idefics" in name or "smolvlm" in name:
        special = {"image_token": "<image>", "fake_image_token": "<fake_token_around_image>", "global_image_token": "<global-img>"}
    words = Words(tokenizer_object=Tokenizer(models.BPE(unk_token="<unk>", vocab={"<unk>": 0}, merges=[])), bos_token="<bos>", extra_special_tokens=special)
    options = dict(PROCESSORS.get(name, {}))
    if "smolvlm" in name or "qwen" in name:
        from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
        from transformers.models.smolvlm import processing_smolvlm
        from transformers.models.smolvlm.video_processing_smolvlm import SmolVLMVideoProcessor

        processing_smolvlm.num2words = str  # for videos alone
        options["video_processor"] = SmolVLMVideoProcessor() if "smolvlm" in name else Qwen2VLVideoProcessor()
    processor = getattr(transformers, processor_class)(image_processor=image_processor, tokenizer=words, **options)
    processor(images=[images], text=[PROMPTS[name]])
    return seen[-1]


def processors():
    for name, config in PREPROCESSORS.items():
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "preprocessor_config.json"), "w") as f:
                json.dump(config, f)
            both = [AutoImageProcessor.from_pretrained(folder, backend=b) for b in (None, "pil")]
        row = {"name": name, "preprocessor": config, "processor": PROCESSORS.get(name), "rows": []}
        for kind, w, h in SIZES:
            im = Image.fromarray(pixels(kind, w, h))
            for backend, p in enumerate(both):
                if name in ("sam", "gemma3", "qwen3-vl") and (backend or w > 100):
                    continue  # as all, and large
                case = {"kind": kind, "width": w, "height": h, "backend": backend}
                try:
                    out = p(im, return_tensors="pt")
                except ValueError:
                    row["rows"].append(case | {"refused": True})
                    continue
                except RuntimeError:  # as above
                    continue
                values = out["pixel_values"].float()
                values = values[0] if values.ndim == 5 else values
                case |= {"shape": list(values.shape), "sum": digest(values.contiguous().numpy().tobytes())}
                if "image_grid_thw" in out:
                    case["grid"] = out["image_grid_thw"][0].tolist()
                if "reshaped_input_sizes" in out:
                    case["resized"] = [int(x) for x in out["reshaped_input_sizes"][0]]
                row["rows"].append(case)
        if name in PROMPTS:
            images = [Image.fromarray(pixels(*SIZES[i])) for i in (0, 4)]
            row["prompt"] = PROMPTS[name]
            row["text"] = digest(expanded(name, config["processor_class"], both[0], images).encode())
        yield row


def positions():
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

    cases = [("tTTi", [(1, 4, 6)]), ("iTiTT", [(1, 2, 2), (1, 8, 4)]), ("TTT", []), ("TiTTTi", [(1, 6, 2), (1, 4, 10)])]
    for form, grids in cases:
        ids, left = [], list(grids)
        for c in form:
            ids += [9] * (left[0][1] * left.pop(0)[2] // 4) if c == "i" else [1]
        ids = torch.tensor([ids])
        answers = set()
        for model in (Qwen2VLModel, Qwen2_5_VLModel, Qwen3VLModel):
            vision = types.SimpleNamespace(spatial_merge_size=2, tokens_per_second=4)
            m = types.SimpleNamespace(config=types.SimpleNamespace(vision_config=vision))
            m.get_vision_position_ids = types.MethodType(model.get_vision_position_ids, m)
            grid = torch.tensor(grids) if grids else None
            p, delta = model.get_rope_index(m, ids, (ids == 9).int(), image_grid_thw=grid)
            answers.add(json.dumps([p[:, 0].tolist(), int(delta[0, 0]) + ids.shape[1]]))
        assert len(answers) == 1, answers
        p, following = json.loads(answers.pop())
        yield {"ids": ids[0].tolist(), "grids": grids, "positions": p, "next": following}


golden = {
    "made by": f"transformers {transformers.__version__}, Pillow {PIL.__version__}, torch {torch.__version__}, torchvision {torchvision.__version__}",
    "resizes": list(resizes()),
    "files": list(files()),
    "animations": list(animations()),
    "processors": list(processors()),
    "positions": list(positions()),
}
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden.json"), "w") as f:
    text = ",\n".join(
        json.dumps(key) + ": " + (json.dumps(value) if isinstance(value, str) else "[\n" + ",\n".join(json.dumps(v) for v in value) + "\n]") for key, value in golden.items()
    )
    f.write("{\n" + text + "\n}\n")
