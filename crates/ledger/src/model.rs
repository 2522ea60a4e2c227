//! The ledger under checkers: its real code, on doors (`atomic`, `lock`, `file`, `os`, `random`)
//! that lead into a model.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p gpulimit-ledger --lib model::`
//!
//! Two checkers, as neither can do both. [`weak`], and [`house`] for slots: loom's, every order of
//! steps and every value that the memory model allows, nobody dies.
//! [`deaths`]: every order of steps, each of which may be the last of its process, in a world where
//! memory has one order; what happens there is in [`play`], how all of it is gone through in
//! [`explorer`]. [`fault`] has the worlds that are wrong.
//!
//! `GPULIMIT_MODEL_DEEP=1` goes further: three processes where two do otherwise, two deaths where
//! there is one.

fn is_deep() -> bool {
    std::env::var_os("GPULIMIT_MODEL_DEEP").is_some()
}

mod deaths;
pub(super) mod explorer;
pub(super) mod fault;
mod house;
mod play;
mod weak;
pub(super) mod word;
