//! `libgpulimit.so`: the preloaded library that stands between a program and the CUDA driver.
//!
//! Read `table` (the hooked functions) first, then one file of `handler` (what a hook does), then
//! `account` (the memory that this process holds). ARCHITECTURE.md describes how these modules fit
//! together.
#![cfg_attr(
    test,
    allow(
        dead_code,
        reason = "unit tests are built without the exported functions, which use this code"
    )
)]

// The rooms (modules in layers), from the bottom to the top: abi, driver, account, handler, hook,
// entry. A room may use the rooms before it in this list and none after it; `tests/tidy/rooms.rs`
// checks that.
mod abi;
mod account;
mod driver;
mod entry;
mod handler;
mod hook;

// Modules that every room may use, and that use no room themselves.
#[cfg(not(test))]
mod backtrace;
mod clock;
mod fault;
mod image;
mod membership;
mod message;
mod refusal;
mod table;
