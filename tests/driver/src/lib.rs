//! The simulated NVIDIA driver: the model of the machine's GPUs that its libcuda and libnvidia-ml share.
