//! `libgpulimit.so`: the preloaded library between a program and the CUDA driver.
//!
//! Read `table` (the hooked functions), then a file of `handler` (their hooks), then `account` (the
//! process's memory).
#![cfg_attr(
    test,
    allow(
        dead_code,
        reason = "unit tests are built without the exported functions, which use this code"
    )
)]

// The rooms from the bottom to the top: abi, driver, account, handler, hook, entry. A room may use
// only rooms before it.
mod abi;
mod account;
mod driver;
mod entry;
mod handler;
mod hook;

// Modules that every room may use, and that use no room themselves.
mod clock;
mod fault;
mod image;
mod membership;
mod message;
mod refusal;
mod table;
mod unwind;
