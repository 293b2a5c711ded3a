"""The same network in PyTorch, to compare memory and time: python pytorch.py. It trains on random data, with torch 2.15 and two threads."""

import resource
import time

import torch
from torch import nn
from torch.nn.functional import cross_entropy

clips, frames, size, width, words, steps = 8, 8, 32, 128, 8, 8
torch.set_num_threads(2)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own, self.cross = (nn.MultiheadAttention(width, 4, batch_first=True) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def forward(self, x, video):
        mask = nn.Transformer.generate_square_subsequent_mask(words)
        h = self.norms[0](x)
        x = x + self.own(h, h, h, attn_mask=mask, need_weights=False, is_causal=True)[0]
        x = x + self.cross(self.norms[1](x), video, video, need_weights=False)[0]
        return x + self.mlp(self.norms[2](x))


class Fusion(nn.Module):
    def __init__(self):
        super().__init__()
        channels, video = [1, 32, 32, 64, 64, width, width], []
        for i, (a, b) in enumerate(zip(channels, channels[1:])):
            video += [nn.Conv3d(a, b, 3, padding=1), nn.GroupNorm(8, b), nn.ReLU()] + [nn.MaxPool3d(2)] * (i % 2)
        self.video, self.words = nn.Sequential(*video), nn.Embedding(16, width)
        self.text, self.norm, self.head = nn.ModuleList(Block() for _ in range(2)), nn.LayerNorm(width), nn.Linear(width, 4, bias=False)

    def forward(self, clip, question):
        video, x = self.video(clip).flatten(2).transpose(1, 2), self.words(question)
        for block in self.text:
            x = block(x, video)
        return self.head(self.norm(x[:, -1]))


model = Fusion()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
seconds = 0
for step in range(steps):
    clip, question, answer = torch.randn(clips, 1, frames, size, size), torch.randint(16, (clips, words)), torch.randint(4, (clips,))
    began = time.time()
    optimizer.zero_grad()
    cross_entropy(model(clip, question), answer).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1)
    optimizer.step()
    seconds += (time.time() - began) / (steps - 1) if step else 0
print(f"resident {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB, {seconds:.2f} s/step")
