# Writes golden.json: the loss of ResNet-18 for two images of 64×64 pixels, and for each parameter the norm of its gradient and its product
# with a vector, as PyTorch computes them on the CPU in float64 from float32 numbers that the test makes too; and two running averages. Run
# with torch 2.15.0:
#
#   python3 plan/testdata/resnet/make.py
import json
import pathlib

import torch
from torch import nn

SIDE, CLASSES, BATCH = 64, 10, 2


def tensor(number, shape):
    """Numbers from -1 to 1 that the test makes too."""
    n = torch.Size(shape).numel()
    x = torch.arange(n, dtype=torch.int64) + number * 97531
    x = (x * x % 2**32 * 2654435761 + x * 40503) % 2**32
    return (x.double() / 2**31 - 1).float().double().reshape(shape)


class Block(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
        self.conv2, self.bn2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        if stride > 1:
            self.downsample = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))

    def forward(self, x):
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + (self.downsample(x) if hasattr(self, "downsample") else x)).relu()


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        for i, (a, b) in enumerate([(64, 64), (64, 128), (128, 256), (256, 512)]):
            setattr(self, f"layer{i + 1}", nn.Sequential(Block(a, b, 1 + (i > 0)), Block(b, b, 1)))
        self.fc = nn.Linear(512, CLASSES)

    def forward(self, x):
        x = nn.functional.max_pool2d(self.bn1(self.conv1(x)).relu(), 3, 2, 1)
        return self.fc(self.layer4(self.layer3(self.layer2(self.layer1(x)))).mean((2, 3)))


def main():
    model, gradients = ResNet().double(), {}
    with torch.no_grad():
        for number, (name, w) in enumerate(sorted(model.named_parameters())):
            w.copy_(tensor(number, w.shape) * (8 / w[0].numel()) ** 0.5 if w.dim() > 1 else tensor(number, w.shape) / 4 + ("bias" not in name))
            w.copy_(w.float())
    loss = nn.functional.cross_entropy(model(tensor(1000, (BATCH, 3, SIDE, SIDE))), torch.tensor([3, 7]))
    loss.backward()
    for number, (name, w) in enumerate(sorted(model.named_parameters())):
        gradients[name] = [float("%.9g" % x) for x in (w.grad.norm(), (w.grad * tensor(2000 + number, w.shape)).sum())]
    averages = {name: float("%.9g" % b.norm()) for name, b in model.named_buffers() if b.dim()}
    text = json.dumps(dict(loss=loss.item(), gradients=gradients, averages=averages), indent=0)
    pathlib.Path(__file__).with_name("golden.json").write_text(text + "\n")


main()
