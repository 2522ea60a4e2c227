//! Memory and semaphores of other programming interfaces. They take no GPU memory here.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use gpulimit_sim::abi::{In, Out};
use gpulimit_sim::driver::driver;
use gpulimit_sim::{Outcome, Status};

/// The handles of one kind of object: the last one, and those that are not destroyed.
struct Objects(Mutex<(usize, BTreeSet<usize>)>);

static MEMORY: Objects = Objects::new();
static SEMAPHORES: Objects = Objects::new();

impl Objects {
    const fn new() -> Self {
        Objects(Mutex::new((0, BTreeSet::new())))
    }

    fn import(&self, object: Out<usize>, description: In<u8>) -> Outcome<()> {
        driver()?;
        description.get()?;
        if object.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        let mut guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, live) = &mut *guard;
        *last += 16;
        live.insert(*last);
        object.put(*last)
    }

    fn destroy(&self, object: usize) -> Outcome<()> {
        driver()?;
        let mut guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = guard.1.remove(&object);
        known.then_some(()).ok_or(Status::INVALID_HANDLE)
    }
}

pub fn import_memory(memory: Out<usize>, description: In<u8>) -> Outcome<()> {
    MEMORY.import(memory, description)
}

pub fn destroy_memory(memory: usize) -> Outcome<()> {
    MEMORY.destroy(memory)
}

pub fn import_semaphore(semaphore: Out<usize>, description: In<u8>) -> Outcome<()> {
    SEMAPHORES.import(semaphore, description)
}

pub fn destroy_semaphore(semaphore: usize) -> Outcome<()> {
    SEMAPHORES.destroy(semaphore)
}
