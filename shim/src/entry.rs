//! The ways into `libgpulimit.so`: exports, functions that hand out addresses of exports, the start
//! hook, and functions for `gpulimit doctor`.

mod door;
mod exports;
mod interface;
mod report;
mod start;
