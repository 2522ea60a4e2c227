//! libgpulimit.so: the preloaded library that stands in front of the CUDA driver.
