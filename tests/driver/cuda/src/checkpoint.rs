//! The driver's checkpoint functions, which move the GPU memory of another process away and back.
//! Their options are ignored.

use gpulimit_sim::abi::{In, Out};
use gpulimit_sim::driver::driver;
use gpulimit_sim::{Outcome, checkpoint};

pub fn state(pid: i32, state: Out<i32>) -> Outcome<()> {
    state.put(checkpoint::state(driver()?.machine, pid)?)
}

/// Returns the process's first thread. It is not known which thread the real driver returns.
pub fn restore_thread(pid: i32, thread: Out<i32>) -> Outcome<()> {
    checkpoint::state(driver()?.machine, pid)?;
    thread.put(pid)
}

pub fn lock(pid: i32, _: In<[u64; 8]>) -> Outcome<()> {
    checkpoint::lock(driver()?.machine, pid)
}

pub fn checkpoint(pid: i32, _: In<[u64; 8]>) -> Outcome<()> {
    checkpoint::checkpoint(driver()?.machine, pid)
}

pub fn restore(pid: i32, _: In<[u64; 8]>) -> Outcome<()> {
    checkpoint::restore(driver()?.machine, pid)
}

pub fn unlock(pid: i32, _: In<[u64; 8]>) -> Outcome<()> {
    checkpoint::unlock(driver()?.machine, pid)
}
