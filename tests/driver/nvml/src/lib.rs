//! libnvidia-ml.so.1 of the simulated driver.
