"""Runs the first kernel of a framework and ends: first.py cupy|torch|cudnn|jax."""

from __future__ import annotations

import sys


def cupy() -> None:
    import cupy

    (cupy.ones(1 << 20) * 2).sum().item()


def torch() -> None:
    import torch

    (torch.ones(1 << 20, device="cuda") * 2).sum().item()


def cudnn() -> None:
    import torch

    images = torch.ones(8, 16, 64, 64, device="cuda")
    torch.nn.Conv2d(16, 32, 3, device="cuda")(images).sum().item()


def jax() -> None:
    import os

    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax.numpy

    (jax.numpy.ones(1 << 20) + 2).sum().block_until_ready()


{"cupy": cupy, "torch": torch, "cudnn": cudnn, "jax": jax}[sys.argv[1]]()
