//! The ways by which a program gets into this library: the exports that the hook table makes, the
//! doors that lead to them, the start, and what `gpulimit doctor` asks.

mod door;
mod exports;
mod report;
mod start;
