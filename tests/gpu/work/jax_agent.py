"""An agent on JAX. All sizes are bytes."""

from __future__ import annotations

import agent
import jax
import jax.numpy as jnp

held: list[jax.Array] = []
# There are few sizes, because XLA's allocator waits 10 s before it gives up on one.
LADDER = tuple(size | 17 for size in (300 << 20, 50 << 20, 5 << 20))


def info() -> dict:
    """Returns the memory figures of the device; the platform allocator has none."""
    return {"stats": jax.devices()[0].memory_stats() or {}, "platform": jax.devices()[0].platform}


def kernels() -> dict:
    """Runs work of several kinds, and compiles the programs of the fill, so that the fill itself
    compiles nothing.
    """
    x = jax.random.normal(jax.random.key(1), (512, 512))
    total = jax.jit(lambda a: jnp.sum(jax.nn.softmax(a @ a) + jnp.sort(a)))(x)
    grown = jax.jit(jax.grad(lambda a: jnp.tanh(a @ a).sum()))(x).sum()
    image = jax.lax.conv(jnp.ones((4, 3, 32, 32)), jnp.ones((8, 3, 3, 3)), (1, 1), "SAME").mean()
    for size in LADDER:
        jax.block_until_ready(made(size)())
    return {"checksum": float(total + grown + image)}


programs: dict[int, object] = {}


def made(size: int):
    """Returns a compiled program whose result is `size` bytes."""
    if size not in programs:
        programs[size] = jax.jit(lambda: jnp.full((size,), 1, jnp.uint8))
    return programs[size]


def fill() -> dict:
    """Allocates arrays of decreasing odd sizes, each size until refused."""
    first, total = {}, 0
    for size in LADDER:
        while True:
            try:
                held.append(jax.block_until_ready(made(size)()))
                total += size
            except Exception as error:
                first = first or {"exception": agent.type_name(error), "text": str(error)[:400]}
                break
    return {
        **first,
        "bytes": total,
        "is_jax_error": first.get("exception") == agent.type_name(jax.errors.JaxRuntimeError("x")),
    }


def free() -> dict:
    """Drops the arrays."""
    held.clear()
    return {}


def alloc(size: int) -> dict:
    """Allocates one array of `size` bytes."""
    held.append(jax.block_until_ready(jnp.full((size,), 1, jnp.uint8)))
    return {}


start: list[jax.Array] = []


@jax.jit
def advance(x: jax.Array) -> jax.Array:
    """Makes one step of a calculation."""
    return jnp.tanh(x @ x) + 0.5 * x


@jax.jit
def is_same(x: jax.Array) -> jax.Array:
    """Returns whether an array counts up from 0."""
    return jnp.all(x == jnp.arange(x.size, dtype=x.dtype))


def keep(size: int) -> dict:
    """Makes the start of the calculation, and an array of `size` bytes with known contents."""
    start.append(jax.random.normal(jax.random.key(3), (2048, 2048)) / 64)
    held.append(jax.block_until_ready(jnp.arange(size // 4, dtype=jnp.int32)))
    return {}


def steps(count: int) -> dict:
    """Makes steps from the start. Returns the sum after each, bit for bit, and whether the array
    has its contents.
    """
    x, sums = start[0], []
    for _ in range(count):
        x = advance(x)
        sums.append(float(jnp.sum(x)).hex())
    return {"sums": sums, "same": bool(is_same(held[0]))}


if __name__ == "__main__":
    orders = (info, kernels, fill, free, alloc, keep, steps)
    agent.serve({order.__name__: order for order in orders})
