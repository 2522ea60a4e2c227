//! The ways into `libgpulimit.so`: the exports, the doors, the start hook, and the functions that
//! `gpulimit doctor` calls. The hook table makes the exports; the doors are the functions that hand
//! out their addresses.

mod door;
mod exports;
mod report;
mod start;
