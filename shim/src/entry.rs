//! The ways into `libgpulimit.so`: the exports (made from the hook table), the doors (functions
//! that hand out addresses of exports), the start hook, and the functions that `gpulimit doctor`
//! calls.

mod door;
mod exports;
mod report;
mod start;
