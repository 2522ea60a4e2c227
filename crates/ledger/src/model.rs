//! Models of the ledger. A model checker runs the ledger's real code in all possible orders of
//! steps.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --profile fast-build -p gpulimit-ledger --lib model::`
//!
//! The modules `atomic`, `lock`, `file`, `os` and `random` are replaced, so that the checker
//! controls every shared operation. There are two checkers:
//!
//! - Loom checks the charge algorithm in [`weak`], the history in [`history`], the words of waiting
//!   requests in [`wait`], demands in [`demand`], the trail in [`trail`], and claiming and cleaning
//!   in [`slots`]. It tries every value that the memory model allows. Processes do not die, except
//!   in [`trail`].
//! - The [`explorer`] checks the scenarios in [`deaths`], and lets a process die before any step.
//!   Its memory is sequentially consistent.
//!
//! [`scenario`] defines what processes do and which rules must hold. [`fault`] lists deliberate
//! errors, which a checker must detect. `GPULIMIT_MODEL_DEEP=1` makes some scenarios larger.

fn is_deep() -> bool {
    std::env::var_os("GPULIMIT_MODEL_DEEP").is_some()
}

mod deaths;
mod demand;
pub(super) mod explorer;
pub(super) mod fault;
mod history;
mod scenario;
mod slots;
mod trail;
mod wait;
mod weak;
pub(super) mod word;
