//! A cgroup for GPU memory.
