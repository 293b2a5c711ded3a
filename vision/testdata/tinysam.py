"""Makes the folder sam/tiny: a small model with TinyViT in the layout of MobileSAM and TinySAM, and what it computes.

Python 3.13, transformers 5.24.0, torch 2.15.0, safetensors 0.8.0:

    python vision/testdata/tinysam.py                     # makes the folder
    python vision/testdata/tinysam.py peers DIR           # this file's TinyViT against timm 1.0.31, and TinySAM's code of a clone in DIR
    python vision/testdata/tinysam.py check DIR          # SamModel and the TinyViT of this file compute from what segment.Model.Save wrote what it did
    python vision/testdata/tinysam.py time FILE THREADS   # the encoder of FILE: seconds for an image, and resident memory

sam/tiny has weights in bfloat16 and golden.json, which sam.py describes, with the features of the TinyViT of this file, and the rest
computed by transformers' SamModel with the epsilon of segment_anything in the decoder.

check: SNUG_SAVE=DIR go test -run TestTinySaves ./vision/segment writes the folders.
"""

import json
import pathlib
import re
import resource
import shutil
import sys
import time
from collections import OrderedDict

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

import sam
from towers import numbers

HERE = pathlib.Path(__file__).parent
SIDE, OUT, HEADS = 160, 32, 8
STAGES = [(8, 2, 12, 0, 0), (12, 1, 24, 2, 7), (16, 2, 24, 4, 4), (20, 1, 16, 5, 10)]  # channels, blocks, hidden, heads, window


def conv_bn(i, o, side=1, stride=1, groups=1):
    return nn.Sequential(OrderedDict(c=nn.Conv2d(i, o, side, stride, side // 2, groups=groups, bias=False), bn=nn.BatchNorm2d(o)))


class Bottleneck(nn.Module):
    def __init__(self, i, hidden, o, stride=1, residual=True):
        super().__init__()
        self.conv1, self.conv2, self.conv3 = conv_bn(i, hidden), conv_bn(hidden, hidden, 3, stride, hidden), conv_bn(hidden, o)
        self.residual = residual

    def forward(self, x):
        y = self.conv3(F.gelu(self.conv2(F.gelu(self.conv1(x)))))
        return F.gelu(x + y) if self.residual else y


class Attention(nn.Module):
    def __init__(self, width, heads, window):
        super().__init__()
        self.norm, self.qkv, self.proj = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.attention_biases = nn.Parameter(torch.zeros(heads, window * window))
        at = torch.arange(window * window)
        row, column = at // window, at % window
        self.pairs = (row[:, None] - row).abs() * window + (column[:, None] - column).abs()
        self.heads = heads

    def forward(self, x):  # [windows, window * window, width]
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (self.heads, 3, -1)).transpose(1, 2).unbind(3)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.attention_biases[:, self.pairs])
        return self.proj(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width, hidden, heads, window):
        super().__init__()
        self.attn, self.local_conv, self.window = Attention(width, heads, window), conv_bn(width, width, 3, 1, width), window
        self.mlp = nn.ModuleDict(dict(norm=nn.LayerNorm(width), fc1=nn.Linear(width, hidden), fc2=nn.Linear(hidden, width)))

    def forward(self, x):  # [images, width, side, side]
        n, w, side = -x.shape[-1] % self.window, self.window, x.shape[-1]
        y = F.pad(x, (0, n, 0, n)).unflatten(2, (-1, w)).unflatten(4, (-1, w)).permute(0, 2, 4, 3, 5, 1)
        shape = y.shape
        y = self.attn(y.flatten(3, 4).flatten(0, 2)).reshape(shape)
        x = x + y.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)[:, :, :side, :side]
        x = self.local_conv(x).permute(0, 2, 3, 1)
        x = x + self.mlp["fc2"](F.gelu(self.mlp["fc1"](self.mlp["norm"](x))))
        return x.permute(0, 3, 1, 2)


class Norm2d(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class TinyViT(nn.Module):
    def __init__(self, stages, out, channels=3):
        super().__init__()
        first = stages[0][0]
        self.patch_embed = nn.ModuleDict(dict(seq=nn.Sequential(conv_bn(channels, first // 2, 3, 2), nn.GELU(), conv_bn(first // 2, first, 3, 2))))
        self.layers = nn.ModuleList()
        for i, (width, blocks, hidden, heads, window) in enumerate(stages):
            block = (lambda: Block(width, hidden, heads, window)) if i else (lambda: Bottleneck(width, hidden, width))
            stage = nn.ModuleDict(dict(blocks=nn.ModuleList(block() for _ in range(blocks))))
            if i + 1 < len(stages):
                following = stages[i + 1][0]
                stage["downsample"] = Bottleneck(width, following, following, 2 if i + 2 < len(stages) else 1, False)
            self.layers.append(stage)
        self.neck = nn.Sequential(nn.Conv2d(width, out, 1, bias=False), Norm2d(out, 1e-6), nn.Conv2d(out, out, 3, padding=1, bias=False), Norm2d(out, 1e-6))

    def stem_and_stages(self, x):
        x = self.patch_embed["seq"](x)
        for stage in self.layers:
            for part in [*stage["blocks"], *([stage["downsample"]] if "downsample" in stage else [])]:
                x = part(x)
        return x

    def forward(self, x):
        return self.neck(self.stem_and_stages(x))


def encoder_of(state):
    """TinyViT of the tensors of a file, by their shapes."""
    own = {k.removeprefix("image_encoder."): v for k, v in state.items() if k.startswith("image_encoder.")}
    stages = []
    while any(k.startswith(f"layers.{len(stages)}.") for k in own):
        at = f"layers.{len(stages)}.blocks."
        blocks = len({k.split(".")[3] for k in own if k.startswith(at)})
        if stages:
            (heads, pairs), (hidden, width) = own[at + "0.attn.attention_biases"].shape, own[at + "0.mlp.fc1.weight"].shape
            stages.append((width, blocks, hidden, heads, round(pairs**0.5)))
        else:
            hidden, width = own[at + "0.conv1.c.weight"].shape[:2]
            stages.append((width, blocks, hidden, 0, 0))
    m = TinyViT(stages, own["neck.0.weight"].shape[0], own["patch_embed.seq.0.c.weight"].shape[1])
    missing, unexpected = m.load_state_dict(own, strict=False)
    assert not missing and not [k for k in unexpected if "head" not in k], (missing, unexpected)
    return m.eval()


def renamed(name):
    """The name in segment_anything of a tensor of transformers, but for the encoder's."""
    for a, b in (
        ("shared_image_embedding.positional_embedding", "prompt_encoder.pe_layer.positional_encoding_gaussian_matrix"), (".point_embed.", ".point_embeddings."),
        ("mask_embed.conv1", "mask_downscaling.0"), ("mask_embed.layer_norm1", "mask_downscaling.1"), ("mask_embed.conv2", "mask_downscaling.3"),
        ("mask_embed.layer_norm2", "mask_downscaling.4"), ("mask_embed.conv3", "mask_downscaling.6"), ("upscale_conv1", "output_upscaling.0"),
        ("upscale_layer_norm", "output_upscaling.1"), ("upscale_conv2", "output_upscaling.3"), ("layer_norm_final_attn", "norm_final_attn"), (".layer_norm", ".norm"),
    ):
        name = name.replace(a, b)
    name = re.sub(r"(mlps\.\d+|_head)\.layers\.0", r"\1.layers.1", name).replace(".proj_in", ".layers.0")
    return re.sub(r"\.(proj_out)\b", ".layers.2", name) if "mlps" in name or "_head" in name else name


def sam_model():
    """SamModel in the shape of sam/tiny, whose own encoder does not count."""
    import transformers as t

    sam.SIDE = SIDE
    shared = dict(image_size=SIDE, patch_size=16)
    m = t.SamModel(t.SamConfig(
        vision_config=dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, mlp_dim=8, output_channels=OUT, num_pos_feats=OUT // 2, **shared),
        prompt_encoder_config=dict(hidden_size=OUT, mask_input_channels=8, **shared),
        mask_decoder_config=dict(hidden_size=OUT, mlp_dim=24, num_attention_heads=HEADS, iou_head_hidden_dim=12, layer_norm_eps=1e-5)))
    return m.double()


def decoder_names(m):
    return {n: renamed(n) for n in m.state_dict() if "vision_encoder" not in n and "shared_embedding" not in n}


def load_decoder(m, state):
    own = {n: state[name].double() for n, name in decoder_names(m).items()}
    own["prompt_encoder.shared_embedding.positional_embedding"] = own["shared_image_embedding.positional_embedding"]
    missing, unexpected = m.load_state_dict(own, strict=False)
    assert not unexpected and all("vision_encoder" in n for n in missing), (missing, unexpected)


def make():
    folder = HERE / "sam" / "tiny"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    m, tiny = sam_model(), TinyViT(STAGES, OUT)
    state = {"image_encoder." + n: v for n, v in tiny.state_dict().items()}
    state |= {name: m.state_dict()[n] for n, name in decoder_names(m).items()}
    state["image_encoder.norm_head.weight"] = torch.ones(STAGES[-1][0])  # of the classifier, which nothing reads
    for i, (name, v) in enumerate(sorted(state.items())):
        if v.is_floating_point():
            one = ("norm" in name or ".bn." in name or ".neck.1" in name or ".neck.3" in name or "scaling.1" in name) and name.endswith("weight")
            v = numbers(3000 + i, v.shape)
            state[name] = (v.abs() + 0.5 if name.endswith("running_var") else v / 2 + one).to(torch.bfloat16)
    save_file(state, folder / "model.safetensors", {"format": "pt", "image_size": str(SIDE)})
    tiny = encoder_of(state).double()
    load_decoder(m, state)
    m.get_image_embeddings = lambda x: tiny(x)
    names = decoder_names(m)
    (folder / "golden.json").write_text(json.dumps(sam.golden(m, names), indent=0))
    (folder / "preprocessor_config.json").write_text(json.dumps(dict(image_processor_type="SamImageProcessor", size=dict(longest_edge=SIDE), pad_size=dict(height=SIDE, width=SIDE))))


def peers(clone):
    """The layers of this file, timm's, and TinySAM's, with random weights in float64."""
    from timm.models.tiny_vit import TinyVit

    torch.manual_seed(1)
    stages = [(64, 2, 256, 0, 0), (128, 2, 512, 4, 7), (160, 6, 640, 5, 14), (320, 2, 1280, 10, 7)]
    m, x = TinyViT(stages, 256).double().eval(), torch.randn(1, 3, 1024, 1024).double()
    with torch.no_grad():
        for n, v in m.state_dict().items():
            if n.endswith("running_var") or v.is_floating_point():
                v.copy_(torch.rand_like(v) + 0.5 if "running_var" in n or ".bn.weight" in n else torch.randn_like(v) * 0.05 + ("norm" in n and n.endswith("weight")))
        of = TinyVit(embed_dims=tuple(s[0] for s in stages), depths=tuple(s[1] for s in stages), num_heads=(2, 4, 5, 10), window_sizes=(7, 7, 14, 7), num_classes=0).double().eval()
        of.stages[3].downsample.conv2.conv.stride = (1, 1)  # MobileSAM's
        def theirs(n):
            n = n.replace("patch_embed.seq.0", "patch_embed.conv1").replace("patch_embed.seq.2", "patch_embed.conv2")
            n = re.sub(r"layers\.(\d+)\.downsample", lambda f: f"stages.{int(f[1]) + 1}.downsample", n).replace("layers.", "stages.")
            return n.replace(".c.", ".conv.")
        got = {theirs(n): v for n, v in m.state_dict().items() if not n.startswith("neck")}
        missing, unexpected = of.load_state_dict(got, strict=False)
        assert not unexpected and all("head" in n for n in missing), (missing, unexpected)
        a, b = m.stem_and_stages(x), of.forward_features(x)
        print(f"timm: error of the stages {(a - b).abs().max() / b.abs().max():.1e}")
        sys.path.insert(0, clone)
        from tinysam import sam_model_registry

        their = sam_model_registry["vit_t"]().double().eval()
        missing, unexpected = their.image_encoder.load_state_dict(m.state_dict(), strict=False)
        assert not unexpected and all("head" in n for n in missing), (missing, unexpected)
        their.eval()
        a, b = m(x), their.image_encoder(x)
        print(f"TinySAM: error of the features {(a - b).abs().max() / b.abs().max():.1e}")
        from tinysam.modeling import MaskDecoder, PromptEncoder, TwoWayTransformer

        mine, grid = sam_model(), SIDE // 16
        state = {name: mine.state_dict()[n] for n, name in decoder_names(mine).items()}
        prompts = PromptEncoder(embed_dim=OUT, image_embedding_size=(grid, grid), input_image_size=(SIDE, SIDE), mask_in_chans=8)
        masks = MaskDecoder(num_multimask_outputs=3, transformer=TwoWayTransformer(depth=2, embedding_dim=OUT, mlp_dim=24, num_heads=HEADS),
                            transformer_dim=OUT, iou_head_depth=3, iou_head_hidden_dim=12)
        for of, part in (prompts, "prompt_encoder."), (masks, "mask_decoder."):
            of.load_state_dict({n.removeprefix(part): v for n, v in state.items() if n.startswith(part)})
        features = torch.randn(2, OUT, grid, grid).double()
        a, b, _ = sam.run(mine, features, "boxes")
        for i, box in enumerate(sam.BOXES):
            sparse, dense = prompts.float()(None, box.float(), None)  # whose positions are in float32 anyway
            c, d = masks.float()(features[i:i + 1].float(), prompts.get_dense_pe(), sparse, dense)
            print(f"TinySAM: error of the masks {(a[i] - c[0]).abs().max() / c.abs().max():.1e}, of the scores {(b[i] - d[0]).abs().max():.1e}")


def check(saved, clone=None):
    for folder in sorted(pathlib.Path(saved).iterdir()):
        want = json.loads((folder / "want.json").read_text())
        state = load_file(folder / "model.safetensors")
        m, tiny = sam_model(), encoder_of(state).double()
        load_decoder(m, state)
        with torch.no_grad():
            masks, scores, _ = sam.run(m, tiny(sam.images()), "boxes")
        for got, of in (masks, "masks"), (scores, "scores"):
            error = ((got.flatten() - torch.tensor(want[of]).double()).abs().max() / got.abs().max()).item()
            print(f"{folder.name}: error of {of} {error:.1e}")
            assert error < 1e-5


def timed(path, threads):
    torch.set_num_threads(int(threads))
    state = load_file(path)
    m, seconds = encoder_of(state).float(), []
    with torch.inference_mode():
        for _ in range(4):
            x, began = torch.randn(1, 3, 1024, 1024), time.time()
            m(x)
            seconds.append(time.time() - began)
    print(f"{threads} threads: {min(seconds):.2f} s, resident {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    {"make": make, "peers": peers, "check": check, "time": timed}[(sys.argv + ["make"])[1]](*sys.argv[2:])
