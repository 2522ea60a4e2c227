"""Train a small net of convolutions and attention; print every loss bit for bit, and the time of a step.

Seeds are fixed and algorithms deterministic, so two runs on one GPU give the same bits.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with a fixed workspace

import torch

STEPS, TIMED = 50, 150
torch.use_deterministic_algorithms(True, warn_only=True)
torch.backends.cudnn.benchmark = False
for fused in ("flash", "mem_efficient", "cudnn"):
    # The fused attentions may add up in any order in their backward pass.
    getattr(torch.backends.cuda, f"enable_{fused}_sdp")(False)
torch.manual_seed(7)


class Net(torch.nn.Module):
    """Two convolutions, one encoder layer, one classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.front = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3, 2, 1), torch.nn.GELU(), torch.nn.Conv2d(32, 128, 3, 2, 1))
        self.mix = torch.nn.TransformerEncoderLayer(128, 4, 256, dropout=0.1, batch_first=True)
        self.head = torch.nn.Linear(128, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Class scores."""
        return self.head(self.mix(self.front(image).flatten(2).transpose(1, 2)).mean(1))


net = Net().cuda()
optimiser = torch.optim.AdamW(net.parameters(), 1e-3)
images = torch.randn(256, 3, 32, 32, device="cuda")
labels = torch.randint(0, 10, (256,), device="cuda")
losses, times = [], []
for step in range(STEPS + TIMED):
    begin = time.perf_counter()
    # Batch sizes differ, so that the allocator works all along.
    batch = slice(0, 64 + step % 7 * 32)
    optimiser.zero_grad(set_to_none=True)
    loss = torch.nn.functional.cross_entropy(net(images[batch]), labels[batch])
    loss.backward()
    optimiser.step()
    value = loss.item()
    if step < STEPS:
        losses.append(value.hex())
    else:
        times.append(time.perf_counter() - begin)
report = {"losses": losses, "step_ms": statistics.median(times) * 1e3, "reserved": torch.cuda.max_memory_reserved()}
print("@" + json.dumps(report))
sys.exit(0)
