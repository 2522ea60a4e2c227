"""As much of JAX as the tests need: arrays of the platform's allocator."""
