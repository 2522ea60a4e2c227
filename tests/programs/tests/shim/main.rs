//! The preloaded library between real processes and the simulated driver. See tests/README.md.

mod linear;
