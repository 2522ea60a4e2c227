"""JAX takes three quarters of the memory that it sees at its start: under a limit, of the limit.

gpulimit run --max 4G -- python examples/jax_fraction.py
"""

import jax
import jax.numpy as jnp


def main() -> None:
    device = jax.devices()[0]
    pool = (device.memory_stats() or {}).get("bytes_limit", 0)
    print(f"memory: the pool has {pool / 2**30:.1f} GiB")

    side = 2048
    matrix = jax.random.normal(jax.random.key(7), (side, side))
    product = jax.jit(lambda a: a @ a.T / side)(matrix).block_until_ready()
    print(f"{side} × {side}: mean of the diagonal {jnp.mean(jnp.diag(product)):.2f}")

    try:
        # Ask for twice the memory of the pool.
        jnp.zeros((2 * pool // 4,), jnp.float32).block_until_ready()
    except jax.errors.JaxRuntimeError as error:
        print(f"refused: {str(error).splitlines()[0][:60]}")
    after = jnp.sum(jnp.ones((1024, 1024))).item()
    print(f"and on: {after:.0f}")


if __name__ == "__main__":
    main()
