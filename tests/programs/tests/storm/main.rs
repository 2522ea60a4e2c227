//! Storms of processes on the simulated driver, stopped members, and provoked races. See
//! tests/README.md.
//!
//! `GPULIMIT_STORM_SECONDS` and `GPULIMIT_STORM_PROCESSES` set the length and the number of
//! processes, and `GPULIMIT_TEST_SEED` the seed; `scripts/storm` sets them.

mod crowd;
mod dying;
mod frozen;
mod judge;
mod program;
mod races;
mod recorder;
mod start_up;
mod stopped;
mod suspensions;
mod tempest;
mod tracer;
