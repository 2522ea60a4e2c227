"""Trains a small net of convolutions and attention, and prints every loss bit for bit. Then, for
each line on its input, runs some more steps and prints the milliseconds of one.

Seeds are fixed and algorithms deterministic, so two runs on one GPU give the same bits.
"""

from __future__ import annotations

import os
import sys
import time

os.environ.setdefault(
    "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
)  # cuBLAS is deterministic only with a fixed workspace

import agent
import torch

STEPS, SIZES = 50, 7
torch.use_deterministic_algorithms(True, warn_only=True)
torch.backends.cudnn.benchmark = False
for fused in ("flash", "mem_efficient", "cudnn"):
    # The fused attentions may sum in any order in their backward pass.
    getattr(torch.backends.cuda, f"enable_{fused}_sdp")(False)
torch.manual_seed(7)


class Net(torch.nn.Module):
    """Two convolutions, one encoder layer, one classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.front = torch.nn.Sequential(
            torch.nn.Conv2d(3, 32, 3, 2, 1), torch.nn.GELU(), torch.nn.Conv2d(32, 128, 3, 2, 1)
        )
        self.mix = torch.nn.TransformerEncoderLayer(128, 4, 256, dropout=0.1, batch_first=True)
        self.head = torch.nn.Linear(128, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Returns class scores."""
        return self.head(self.mix(self.front(image).flatten(2).transpose(1, 2)).mean(1))


net = Net().cuda()
optimiser = torch.optim.AdamW(net.parameters(), 1e-3)
images = torch.randn(256, 3, 32, 32, device="cuda")
labels = torch.randint(0, 10, (256,), device="cuda")


def train(step: int) -> str:
    """Trains one step; returns its loss, bit for bit."""
    # Batch sizes differ, so that the allocator has work in every step.
    batch = slice(0, 64 + step % SIZES * 32)
    optimiser.zero_grad(set_to_none=True)
    loss = torch.nn.functional.cross_entropy(net(images[batch]), labels[batch])
    loss.backward()
    optimiser.step()
    return loss.item().hex()


agent.send(losses=[train(step) for step in range(STEPS)], reserved=torch.cuda.max_memory_reserved())
for _ in sys.stdin:
    begin = time.perf_counter()
    for step in range(2 * SIZES):
        train(step)
    agent.send(step_ms=(time.perf_counter() - begin) * 1e3 / (2 * SIZES))
