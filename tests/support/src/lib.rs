//! This crate has what all tests share: directories, clean environments, patience, seeds and skips.
//!
//! `scripts/test` passes these variables; a plain `cargo test` works without them:
//! - `GPULIMIT_TEST_PATIENCE`: seconds that a test waits for an event before it fails (120)
//! - `GPULIMIT_TEST_SEED`: the number that random tests start from (1)
//! - `GPULIMIT_TEST_BUILT`: what the tests run is built, so that no test calls cargo
//! - `GPULIMIT_TEST_RUN`: the folder of this run; `gpulimit-marked` makes a place in it for each
//!   test and names the test to all processes that the test starts

mod allocator;
mod environment;
pub mod executable;
mod patience;
mod place;
mod process;
mod seed;
mod skip;

pub use allocator::Counting;
pub use environment::{clean, fetch, free_port, is_built, repository, text};
pub use patience::{eventually, patience, wait_until};
pub use place::{Scratch, unique};
pub use process::{Running, fed, finish, side_by_side};
pub use seed::{Random, random, seed};
pub use skip::{have, is_root, may_mount, may_unshare, skip};
