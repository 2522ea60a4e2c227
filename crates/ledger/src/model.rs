//! Models of the ledger: a model checker runs the ledger's real code in all possible orders of
//! steps. The modules `atomic`, `lock`, `file`, `os` and `random` are replaced by versions that let
//! a checker control every operation that other processes can see.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --profile fast-build -p gpulimit-ledger --lib model::`
//!
//! There are two model checkers, because neither of them can check everything:
//!
//! - Loom, in [`weak`] for the charge algorithm and in [`slots`] for claiming and cleaning. Loom
//!   tries every order of steps. For each load it tries every value that the memory model allows.
//!   Processes do not die.
//! - The explorer, in [`deaths`]. The explorer tries every order of steps, and lets a process die
//!   before any of its steps. Its memory does not reorder operations (sequential consistency).
//!   [`scenario`] defines what the processes do and what must hold; [`explorer`] enumerates the
//!   orders.
//!
//! The module [`fault`] lists deliberate errors, each of which a checker must detect.
//!
//! The environment variable `GPULIMIT_MODEL_DEEP=1` makes some scenarios larger: three processes
//! with full programs instead of two, or two deaths instead of one.

fn is_deep() -> bool {
    std::env::var_os("GPULIMIT_MODEL_DEEP").is_some()
}

mod deaths;
pub(super) mod explorer;
pub(super) mod fault;
mod scenario;
mod slots;
mod weak;
pub(super) mod word;
