//! The procedure that suspends processes and resumes them. An *actor* runs it: the controller, for
//! the processes of a set.
//!
//! - **Suspend**: lock all processes, look for obstacles again, move the memory of all to the host.
//!   Only then lower the charges.
//! - **Resume**: charge the room in the actor's own slot, see that the GPUs have it free, hold it,
//!   hand the charges over, and ask the driver to bring the memory back. The driver is asked once:
//!   a restore that finds no room can never be repeated, and the process is lost.
//!
//! An actor may die before any step. For that case the slot of the process says that an actor was
//! at work (the *errand*). No step is recorded: the driver's state of the process decides what is
//! left to do, see [`settle`]. While the driver moves memory for a dead actor, it makes the answer
//! wait, so the state that it reports is final.
//!
//! The procedure reaches the driver, the ledgers and the GPUs through a [`World`]. The tests run it
//! in a world where actors die, owners die, and strangers take memory, before each step.

mod down;
mod settle;
mod up;
mod world;

#[cfg(test)]
mod model;

pub use down::suspend;
pub use settle::settle;
pub use up::resume;
pub use world::{State, World};
