//! The ways into this library: the exports that the hook table makes, the doors that hand them out,
//! the start, and the questions of `gpulimit doctor`.

mod door;
mod exports;
mod report;
mod start;
