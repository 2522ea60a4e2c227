//! The ways into `libgpulimit.so`: the exports that the hook table makes, the doors (the functions
//! that hand out the addresses of the exports), the start hook, and the functions that `gpulimit
//! doctor` calls.

mod door;
mod exports;
mod report;
mod start;
