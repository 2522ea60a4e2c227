//! `libgpulimit.so`: the preloaded library that stands in front of the CUDA driver.
//!
//! Read `table` (what is hooked), one `handler` (what we do there), `account` (what this process holds). ARCHITECTURE.md has the picture.
#![cfg_attr(test, allow(dead_code, reason = "tests are built without the exports"))]

mod abi;
mod account;
#[cfg(not(test))]
mod backtrace;
mod capture;
mod clock;
mod door;
mod driver;
mod fault;
mod handler;
mod hook;
mod image;
mod membership;
mod message;
mod nvml;
mod process;
mod refusal;
mod report;
mod start;
mod table;
