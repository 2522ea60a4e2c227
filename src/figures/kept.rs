//! Trends of groups, kept between rounds: to compute a trend takes longer than all other figures.

use super::trend::Trend;
use crate::figures;
use crate::groups::View;
use gpulimit_base::device::DeviceId;
use gpulimit_ledger::DeviceEntry;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Number of trends that a round computes. A window of a trend is at least ten minutes long, so a
/// trend of a few minutes ago serves as well.
const FRESH: usize = 16;

/// The last known trends. Each round computes some of them, in turns.
#[derive(Default)]
pub struct Kept {
    /// By name, root and GPU. Paths take longer to compare than names.
    known: BTreeMap<(String, PathBuf, DeviceId), Known>,
    round: u64,
    /// The position in the round of the first trend to compute.
    first: usize,
    /// Number of trends that this round has returned.
    asked: usize,
}

struct Known {
    trend: Option<Trend>,
    /// The round in which the trend was last asked for.
    round: u64,
}

impl Kept {
    /// Ends a round: chooses the trends that the next round computes, and forgets groups that this
    /// round did not ask for.
    pub fn end_round(&mut self) {
        let round = self.round;
        self.known.retain(|_, known| known.round == round);
        let next = self.first + FRESH;
        self.first = if next < self.asked { next } else { 0 };
        self.round += 1;
        self.asked = 0;
    }

    /// Returns the trend of a group's usage of a GPU, whose present usage is `usage` bytes.
    pub fn trend(&mut self, view: &View, device: &DeviceEntry, usage: u64) -> Option<Trend> {
        let (name, root) = (view.group.name().to_owned(), view.group.root().to_owned());
        let read = || figures::read_trend(view, device, usage);
        self.of((name, root, device.id), read)
    }

    fn of(
        &mut self,
        key: (String, PathBuf, DeviceId),
        read: impl FnOnce() -> Option<Trend>,
    ) -> Option<Trend> {
        let is_turn = (self.first..self.first + FRESH).contains(&self.asked);
        self.asked += 1;
        let round = self.round;
        let new = Known { trend: None, round };
        let known = self.known.entry(key).or_insert(new);
        known.round = round;
        if is_turn {
            known.trend = read();
        }
        known.trend
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const ID: DeviceId = DeviceId::gpu([7; 16]);

    /// Asks for the trends of this many groups, and returns which of them were computed.
    fn round(kept: &mut Kept, groups: usize) -> Vec<usize> {
        let mut computed = Vec::new();
        for group in 0..groups {
            let key = (group.to_string(), PathBuf::new(), ID);
            let trend = kept.of(key, || {
                computed.push(group);
                Some(Trend {
                    time: Duration::from_secs(group as u64),
                    rate: 1.0,
                    process: None,
                })
            });
            let time = trend.map(|trend| trend.time.as_secs());
            assert!(time.is_none_or(|time| time == group as u64));
        }
        kept.end_round();
        computed
    }

    #[test]
    fn each_round_computes_a_part_in_turns() {
        let mut kept = Kept::default();
        let all: Vec<usize> = (0..3).flat_map(|_| round(&mut kept, 40)).collect();
        assert_eq!(all, (0..40).collect::<Vec<_>>());
        assert_eq!(round(&mut kept, 40).first(), Some(&0), "from the beginning");
        assert_eq!(round(&mut kept, 3), [0; 0], "the turn of later ones");
        assert_eq!(round(&mut kept, 3), [0, 1, 2]);
        assert_eq!(kept.known.len(), 3, "the others are forgotten");
    }
}
