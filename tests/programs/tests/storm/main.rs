//! Storms of processes on the simulated driver, members that stand still, and races made wide. See
//! tests/README.md.
//!
//! `GPULIMIT_STORM_SECONDS`, `GPULIMIT_STORM_PROCESSES` and `GPULIMIT_STORM_SEED` say how long, how
//! many and which; `scripts/storm` sets them.

mod crowd;
mod frozen;
mod judge;
mod numbers;
mod program;
mod races;
mod start_up;
mod stopped;
mod tempest;
mod tracer;
