//! The driver's checkpoint functions, which move the GPU memory of another process away and back.
//! Their options may be missing. All structures of options are 64 bytes, of which only the time
//! limit of the lock is simulated. Assumed: other words than 0 in reserved places, which cuda.h
//! forbids, are invalid values.

use gpulimit_sim::abi::{In, Out};
use gpulimit_sim::driver::driver;
use gpulimit_sim::{Outcome, Status, checkpoint};

type Options = In<[u64; 8]>;

/// Returns the words of the options.
///
/// # Errors
/// `INVALID_VALUE` if a word is not 0 beside the bits of `known` in the first word.
fn words(options: Options, known: u64) -> Outcome<[u64; 8]> {
    let words = options.get().unwrap_or_default();
    let is_reserved = words[0] & !known != 0 || words[1..].iter().any(|word| *word != 0);
    if is_reserved {
        return Err(Status::INVALID_VALUE);
    }
    Ok(words)
}

pub fn state(pid: i32, state: Out<i32>) -> Outcome<()> {
    state.put(checkpoint::state(driver()?.machine, pid)?)
}

pub fn restore_thread(pid: i32, thread: Out<i32>) -> Outcome<()> {
    thread.put(checkpoint::restore_thread(driver()?.machine, pid)?)
}

/// The options begin with the time limit in milliseconds, 32 bits; 0 means none.
pub fn lock(pid: i32, options: Options) -> Outcome<()> {
    let timeout_ms = words(options, u32::MAX.into())?[0] as u32;
    checkpoint::lock(driver()?.machine, pid, timeout_ms)
}

pub fn checkpoint(pid: i32, options: Options) -> Outcome<()> {
    words(options, 0)?;
    checkpoint::checkpoint(driver()?.machine, pid)
}

pub fn restore(pid: i32, options: Options) -> Outcome<()> {
    words(options, 0)?;
    checkpoint::restore(driver()?.machine, pid)
}

pub fn unlock(pid: i32, options: Options) -> Outcome<()> {
    words(options, 0)?;
    checkpoint::unlock(driver()?.machine, pid)
}
