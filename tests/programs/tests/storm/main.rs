//! Storms of processes on the simulated driver, stopped members, and provoked races. See
//! tests/README.md.
//!
//! `GPULIMIT_STORM_SECONDS`, `GPULIMIT_STORM_PROCESSES` and `GPULIMIT_STORM_SEED` set the length,
//! the number of processes and the seed; `scripts/storm` sets them.

mod crowd;
mod dying;
mod frozen;
mod judge;
mod numbers;
mod program;
mod races;
mod recorder;
mod start_up;
mod stopped;
mod suspensions;
mod tempest;
mod tracer;
