//! The driver's checkpoint functions, which move the GPU memory of another process away and back.
//! Of their options only the time limit of the lock is known.

use gpulimit_sim::abi::{In, Out};
use gpulimit_sim::driver::driver;
use gpulimit_sim::{Outcome, checkpoint};

pub fn state(pid: i32, state: Out<i32>) -> Outcome<()> {
    state.put(checkpoint::state(driver()?.machine, pid)?)
}

pub fn restore_thread(pid: i32, thread: Out<i32>) -> Outcome<()> {
    thread.put(checkpoint::restore_thread(driver()?.machine, pid)?)
}

/// The options begin with the time limit in milliseconds, 32 bits; 0 means none.
pub fn lock(pid: i32, options: In<[u64; 8]>) -> Outcome<()> {
    let timeout_ms = options.get().map_or(0, |words| words[0] as u32);
    checkpoint::lock(driver()?.machine, pid, timeout_ms)
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
