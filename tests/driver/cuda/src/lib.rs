//! libcuda.so.1 of the simulated driver.
