//! `libgpulimit.so`: the preloaded library that stands in front of the CUDA driver.
//!
//! Read `table` (what is hooked), one `handler` (what we do there), `account` (what this process
//! holds). ARCHITECTURE.md has the picture.
#![cfg_attr(test, allow(dead_code, reason = "tests are built without the exports"))]

// The rooms. Each knows those before it and none after it: abi, driver, account, handler, hook,
// entry. `tests/tidy/rooms.rs` holds them to it.
mod abi;
mod account;
mod driver;
mod entry;
mod handler;
mod hook;

// What all of them may use, and what knows none of them.
#[cfg(not(test))]
mod backtrace;
mod clock;
mod fault;
mod image;
mod membership;
mod message;
mod refusal;
mod table;
