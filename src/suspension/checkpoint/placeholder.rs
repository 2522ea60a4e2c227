//! Memory that keeps room on a GPU free of other programs until a suspended process comes back.

use super::driver::{Address, Ordinal};
use super::{Checkpoints, Status};
use gpulimit_base::device::DeviceId;
use std::thread;
use std::time::{Duration, Instant};

/// The driver hands out memory in blocks of this size.
const BLOCK: u64 = 2 << 20;
/// The longest time for which dropping a [`Placeholder`] waits until NVML shows the memory as free.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(1);

/// Memory of one GPU that this process holds: a context and one allocation. Dropping the value
/// releases the memory.
///
/// The calls of one value must come from one thread.
pub struct Placeholder<'a> {
    driver: &'a Checkpoints,
    device: DeviceId,
    held: Option<Held>,
}

struct Held {
    ordinal: Ordinal,
    memory: Option<Address>,
    /// The bytes that this process had on the GPU before.
    before: u64,
    /// The bytes of the context and the allocation.
    bytes: u64,
}

impl Checkpoints {
    /// Takes memory of a GPU: at most `bytes`, and as close to `bytes` as blocks of the driver
    /// allow. The context of this process counts. Takes nothing if `bytes` is smaller than a
    /// context, or if NVML does not tell how much this process has; a context then exists for a
    /// moment.
    ///
    /// # Errors
    /// The status of the driver, such as [`Status::OUT_OF_MEMORY`].
    pub fn hold(&self, device: &DeviceId, bytes: u64) -> Result<Placeholder<'_>, Status> {
        let ordinal = self.ordinal(device)?;
        let own = std::process::id();
        let mut placeholder = Placeholder {
            driver: self,
            device: *device,
            held: None,
        };
        let Some(before) = self.gpus.used_by(own, device) else {
            return Ok(placeholder);
        };
        let figure = || {
            let used = self.gpus.used_by(own, device)?;
            // A context without bytes is one that NVML does not show, as in some containers.
            Some(used.saturating_sub(before)).filter(|held| *held > 0)
        };
        self.enter(ordinal)?;
        // From here on, dropping the placeholder releases the context.
        placeholder.held = Some(Held {
            ordinal,
            memory: None,
            before,
            bytes: 0,
        });
        let Some(context) = figure().filter(|context| *context <= bytes) else {
            placeholder.give_back();
            return Ok(placeholder);
        };
        let mut wanted = bytes - context;
        let mut taken = (None, context);
        loop {
            wanted -= wanted % BLOCK;
            if wanted == 0 {
                break;
            }
            let memory = self.allocate(wanted)?;
            match figure() {
                Some(held) if held <= bytes => {
                    taken = (Some(memory), held);
                    break;
                }
                // The driver takes more than was asked for.
                held => {
                    self.free(memory)?;
                    let excess = held.map_or(wanted, |held| held - bytes);
                    wanted = wanted.saturating_sub(excess.next_multiple_of(BLOCK));
                }
            }
        }
        if let Some(held) = &mut placeholder.held {
            (held.memory, held.bytes) = taken;
        }
        Ok(placeholder)
    }
}

impl Placeholder<'_> {
    /// Returns the bytes that this process holds by the placeholder, including its context.
    #[cfg(test)]
    pub fn bytes(&self) -> u64 {
        self.held.as_ref().map_or(0, |held| held.bytes)
    }

    /// Gives back what is held beyond `bytes`, all of it if `bytes` is smaller than the context.
    pub fn shrink(&mut self, bytes: u64) {
        let Some(held) = self.held.as_mut().filter(|held| held.bytes > bytes) else {
            return;
        };
        if let Some(memory) = held.memory.take() {
            let _ = self.driver.free(memory);
        }
        let gpus = &self.driver.gpus;
        let context = gpus.used_by(std::process::id(), &self.device);
        held.bytes = context.map_or(u64::MAX, |used| used.saturating_sub(held.before));
        match bytes.checked_sub(held.bytes) {
            Some(rest) if rest < BLOCK => {}
            // Allocations of whole blocks take exactly their size.
            Some(rest) => {
                let wanted = rest - rest % BLOCK;
                held.memory = self.driver.allocate(wanted).ok();
                held.bytes += held.memory.map_or(0, |_| wanted);
            }
            None => self.give_back(),
        }
    }

    /// Gives the memory and the context back, and waits until NVML shows that they are free, or for
    /// ten seconds.
    fn give_back(&mut self) {
        let Some(held) = self.held.take() else {
            return;
        };
        if let Some(memory) = held.memory {
            // Releasing the context frees the memory as well.
            let _ = self.driver.free(memory);
        }
        if self.driver.leave(held.ordinal).is_err() {
            return;
        }
        let own = || self.driver.gpus.used_by(std::process::id(), &self.device);
        let until = Instant::now() + PATIENCE;
        while own().is_some_and(|used| used > held.before) && Instant::now() < until {
            thread::sleep(PAUSE);
        }
    }
}

impl Drop for Placeholder<'_> {
    fn drop(&mut self) {
        self.give_back();
    }
}
