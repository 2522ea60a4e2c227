//! The shares of GPUs' processors that processes use, as NVML samples them, kept between rounds.

use super::processes::Process;
use crate::machine::nvml::Driver;
use crate::words::clock::Moment;
use gpulimit_base::device::DeviceId;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The use of a GPU's processors by a process.
#[derive(Copy, Clone, Debug, Deserialize, Serialize)]
pub struct Share {
    /// The mean part of the processors, in percent.
    pub percent: u32,
    /// When the part was last seen not to be 0, in milliseconds since 1970.
    pub used_ms: Option<u64>,
}

/// The shares on each GPU, by pid, and when NVML was asked for them, in milliseconds since 1970.
#[derive(Default)]
pub struct Shares(BTreeMap<DeviceId, (u64, BTreeMap<u32, Share>)>);

impl Shares {
    /// How old a share may be, in milliseconds: the answer takes NVML longer than all others.
    const AGE: u64 = 3_000;

    /// Notes the share of each process. The first time it is the mean of the samples that NVML
    /// has kept, later the mean since the time before.
    pub fn note(&mut self, processes: &mut [Process], driver: Option<&Driver>) {
        let gpus: BTreeSet<DeviceId> = processes.iter().filter_map(Process::gpu).collect();
        self.0.retain(|gpu, _| gpus.contains(gpu));
        let now = Moment::from(Timestamp::now()).unix_ms;
        for gpu in &gpus {
            let (asked, known) = self.0.entry(*gpu).or_default();
            // The clock can be set back.
            if now.abs_diff(*asked) >= Self::AGE {
                let found = driver.map(|driver| driver.shares(gpu, asked.saturating_mul(1_000)));
                *known = renewed(known, found.unwrap_or_default(), now);
                *asked = now;
            }
        }
        for process in processes.iter_mut().filter(|process| process.alive) {
            let on = process.gpu().and_then(|gpu| self.0.get(&gpu));
            process.share = on
                .zip(process.pid)
                .and_then(|((_, of), pid)| of.get(&pid).copied());
        }
    }
}

/// Returns the shares that were found at a time, with the last uses that were known before.
fn renewed(
    known: &BTreeMap<u32, Share>,
    found: BTreeMap<u32, u32>,
    now_ms: u64,
) -> BTreeMap<u32, Share> {
    let share = |(pid, percent)| {
        let before = known.get(&pid).and_then(|known| known.used_ms);
        let used_ms = if percent > 0 { Some(now_ms) } else { before };
        (pid, Share { percent, used_ms })
    };
    found.into_iter().map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_use_of_a_process_is_kept_while_nvml_has_samples_of_it() {
        let mut known = BTreeMap::new();
        for (now, found, expected) in [
            (1, vec![(7, 40), (8, 0)], vec![(7, Some(1)), (8, None)]),
            (2, vec![(7, 0), (8, 5)], vec![(7, Some(1)), (8, Some(2))]),
            (3, vec![(8, 0)], vec![(8, Some(2))]),
            (4, vec![(7, 0), (8, 0)], vec![(7, None), (8, Some(2))]),
        ] {
            known = renewed(&known, found.into_iter().collect(), now);
            let used: Vec<_> = known
                .iter()
                .map(|(pid, share)| (*pid, share.used_ms))
                .collect();
            assert_eq!(used, expected, "{now}");
        }
    }
}
