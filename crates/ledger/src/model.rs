//! Models of the ledger. A model checker runs the ledger's real code in all possible orders of
//! steps. The modules `atomic`, `lock`, `file`, `os` and `random` are replaced, so that the checker
//! controls every operation that other processes can see.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --profile fast-build -p gpulimit-ledger --lib model::`
//!
//! There are two model checkers, because neither of them can check everything:
//!
//! - Loom checks the charge algorithm in [`weak`], and claiming and cleaning in [`slots`]. It tries
//!   every order of steps. For each load it tries every value that the memory model allows.
//!   Processes do not die.
//! - The explorer checks the scenarios in [`deaths`]. It tries every order of steps, and lets a
//!   process die before any of its steps. Its memory does not reorder operations (sequential
//!   consistency). [`scenario`] defines what processes do and which rules must hold. [`explorer`]
//!   tries the orders.
//!
//! The module [`fault`] lists deliberate errors. A checker must detect each of them.
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
