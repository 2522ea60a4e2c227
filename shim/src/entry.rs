//! The ways into `libgpulimit.so`: the exports, the doors, the start hook, and the functions that
//! `gpulimit doctor` calls. The exports are made from the hook table. The doors are the functions
//! that hand out addresses of exports.

mod door;
mod exports;
mod report;
mod start;
