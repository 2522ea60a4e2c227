//! Takes memory: the charge, the driver's call, and the way back where the call leaves less than
//! `keep_free`.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Device;
use crate::abi::{SUCCESS, Status};
use crate::account::charged::Charged;
use crate::account::request::Request;
use crate::account::{BLOCK, round_up};
use crate::clock;
use crate::refusal::Refused;

/// How often one call is made before it fails, because each time less than `keep_free` was left.
const TRIES: u32 = 4;

impl Device {
    /// Charges `asked` bytes in whole blocks, and runs `make`, the call that takes them. Where that
    /// leaves less than `keep_free`, runs `give_back`, and makes the request again.
    #[inline]
    pub fn take(
        &self,
        symbol: &'static str,
        asked: u64,
        make: impl Fn(Charged<'_>) -> Status,
        give_back: impl Fn(),
    ) -> Result<Status, Refused> {
        let mut tries = 0;
        loop {
            let mark = self.process.mark();
            let status = make(self.charge(Request::insisting(symbol, round_up(asked, BLOCK)))?);
            let below = (status == SUCCESS).then(|| self.below()).flatten();
            if below.is_none() {
                self.note_answer(symbol, asked, status);
            }
            self.renew(mark);
            let Some(left) = below else {
                return Ok(status);
            };
            give_back();
            self.again(symbol, asked, left, &mut tries)?;
        }
    }

    /// Returns before a request is made again, whose memory was given back because it left no more
    /// than `left` bytes free. The request then waits or is refused; after some `tries` it is
    /// refused here.
    #[cold]
    #[inline(never)]
    pub fn again(
        &self,
        symbol: &'static str,
        bytes: u64,
        left: u64,
        tries: &mut u32,
    ) -> Result<(), Refused> {
        *tries += 1;
        if *tries == TRIES {
            return Err(self.refuse(symbol, bytes, Some(left)));
        }
        // Others that ask at the same time look again at other times.
        let time = std::process::id()
            .wrapping_mul(*tries)
            .wrapping_mul(0x9e37_79b9);
        clock::nap(Duration::from_micros(u64::from(time >> 18)));
        Ok(())
    }

    /// Returns the bytes that are free on the GPU, if a call has left less than `keep_free`. Asks
    /// the driver only where requests look at the GPU.
    #[inline]
    pub fn below(&self) -> Option<u64> {
        (self.looks.load(Ordering::Relaxed)).then(|| self.look_below())?
    }

    #[cold]
    #[inline(never)]
    fn look_below(&self) -> Option<u64> {
        let keep = self.book.keep_free();
        if keep == 0 {
            self.looks.store(false, Ordering::Relaxed);
            return None;
        }
        self.machine_free().filter(|free| *free < keep)
    }
}
