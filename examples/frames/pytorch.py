"""The network of this example in PyTorch, to compare: python pytorch.py, with torch 2.15 and two threads."""

import resource
import time

import torch
from torch import nn

clips, frames, size, width, steps = 8, 5, 64, 256, 8
torch.set_num_threads(2)


class Frames(nn.Module):
    def __init__(self):
        super().__init__()
        sides, channels = [1, 64, 128, width], []
        for a, b in zip(sides, sides[1:]):
            channels += [nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(8, b), nn.ReLU(), nn.MaxPool2d(2)]
        self.frame = nn.Sequential(*channels, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.time = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True), 2, nn.LayerNorm(width))
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        return self.head(self.time(self.frame(x).reshape(clips, frames, width)))


model = Frames()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
seconds = 0
for step in range(steps):
    x, y = torch.randn(clips * frames, 1, size, size), torch.randn(clips, frames, 2)
    began = time.time()
    optimizer.zero_grad()
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1)
    optimizer.step()
    seconds += (time.time() - began) / (steps - 1) if step else 0
print(f"resident {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB, {seconds:.2f} s/step")
