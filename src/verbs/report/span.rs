//! The use of memory in a span of time: the differences of cumulative figures.

use std::collections::BTreeSet;

/// The cumulative figures of a group, or of a user in a group, at a point in time. They count from
/// the time when the group was made.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Time of the figures, in milliseconds since 1970.
    pub time: u64,
    /// Time when the group was made, in milliseconds since 1970; `None` if the file system does not
    /// tell.
    pub made: Option<u64>,
    pub used: Use,
}

/// The use of memory since a group was made, or in a span of time. A figure is `None` if it is
/// unknown; a user has only the GiB-hours.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Use {
    /// Time from which the figures count, in milliseconds since 1970. Later than the begin of the
    /// span if nothing is known of the time before.
    pub from: Option<u64>,
    /// The present limit in bytes.
    pub limit: Option<u64>,
    pub gib_hours: Option<f64>,
    /// The highest usage.
    pub peak: Option<u64>,
    pub refusals: Option<u64>,
    pub waits: Option<u64>,
    pub waited_ms: Option<u64>,
}

impl Use {
    /// Adds what was used from one sample to a later one of the same group. Without an earlier
    /// sample, adds what was used since the group was made. `old_peak` becomes the highest peak
    /// that is perhaps before the span.
    fn add(&mut self, before: Option<&Self>, after: &Self, old_peak: &mut Option<u64>) {
        let hours = |used: &Self| used.gib_hours.unwrap_or(0.0);
        let more = hours(after) - before.map_or(0.0, hours);
        self.gib_hours = Some(hours(self) + more.max(0.0));
        let more = |of: fn(&Self) -> Option<u64>| {
            Some(of(after)?.saturating_sub(before.and_then(of).unwrap_or(0)))
        };
        let add =
            |sum: Option<u64>, more: Option<u64>| Some(sum.unwrap_or(0).saturating_add(more?));
        self.refusals = add(self.refusals, more(|used| used.refusals));
        self.waits = add(self.waits, more(|used| used.waits));
        self.waited_ms = add(self.waited_ms, more(|used| used.waited_ms));
        // A peak that has risen is of the time between the samples.
        match more(|used| used.peak) {
            Some(0) if after.peak > Some(0) => *old_peak = after.peak.max(*old_peak),
            _ => self.peak = after.peak.max(self.peak),
        }
    }
}

impl Sample {
    /// Returns whether the figures of a later sample of this name go on from this sample's. They do
    /// not if the group was made anew in between.
    fn goes_on_in(&self, later: &Self) -> bool {
        match (self.made, later.made) {
            (Some(made), Some(other)) => made == other,
            // Without the time, figures that fall tell a new group.
            _ => later.used.gib_hours >= self.used.gib_hours,
        }
    }
}

/// The samples of one name, on one GPU.
pub struct Samples<'a> {
    /// In the order of their time.
    pub samples: &'a [Sample],
    /// The times at which figures of this root were saved. A save without a line of this name tells
    /// that its figures were 0.
    pub saves: &'a BTreeSet<u64>,
}

impl Samples<'_> {
    /// Returns the use after the time `since`; `None` if nothing is known of it.
    ///
    /// The figures begin at the last sample before `since`, or at 0 if the group was made later or
    /// first used later. Otherwise they begin at the first sample after `since`.
    pub fn after(&self, since: u64) -> Option<Use> {
        let (mut used, mut old_peak) = (Use::default(), None);
        let mut last: Option<&Sample> = None;
        for sample in self.samples {
            let before = last.replace(sample);
            if sample.time <= since {
                continue;
            }
            match before.filter(|before| before.goes_on_in(sample)) {
                Some(before) => {
                    used.from.get_or_insert(before.time);
                    used.add(Some(&before.used), &sample.used, &mut old_peak);
                }
                None if self.begins_at_0(since, before, sample) => {
                    used.from.get_or_insert(self.known_from(since, sample));
                    used.add(None, &sample.used, &mut old_peak);
                }
                // What the group used before this sample is unknown. The next sample goes on from
                // it.
                None => used.from = used.from.max(Some(sample.time)),
            }
        }
        used.limit = last.and_then(|last| last.used.limit);
        used.peak = used.peak.filter(|_| used.peak >= old_peak);
        used.gib_hours.is_some().then_some(used)
    }

    /// Returns the time from which the figures of a name are known whose first group was made after
    /// `since`. Before the first save, there may have been other groups of that name.
    fn known_from(&self, since: u64, first: &Sample) -> u64 {
        if self.saves.range(..=since).next().is_some() {
            return since;
        }
        let made = first.made.unwrap_or(first.time);
        let save = self.saves.first().copied();
        save.map_or(made, |save| made.min(save)).max(since)
    }

    /// Returns whether all that the first sample of a group counts was used after `since`. `before`
    /// is the last sample of an earlier group of the same name.
    fn begins_at_0(&self, since: u64, before: Option<&Sample>, sample: &Sample) -> bool {
        let was_unused = |made: u64| self.saves.range(made..sample.time).next().is_some();
        before.is_some_and(|before| before.time >= since)
            || sample
                .made
                .is_some_and(|made| made >= since || made < sample.time && was_unused(made))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SINCE: u64 = 1_000;

    /// Returns figures of a group, all of which are multiples of `figure`.
    fn sample(time: u64, made: u64, figure: u64, peak: u64) -> Sample {
        Sample {
            time,
            made: (made > 0).then_some(made),
            used: Use {
                from: None,
                limit: None,
                gib_hours: Some(figure as f64),
                peak: Some(peak),
                refusals: Some(2 * figure),
                waits: Some(3 * figure),
                waited_ms: Some(4 * figure),
            },
        }
    }

    fn after(samples: &[Sample], saves: &[u64]) -> Option<Use> {
        let saves = &saves.iter().copied().collect();
        Samples { samples, saves }.after(SINCE)
    }

    fn found(from: u64, figure: u64, peak: Option<u64>) -> Option<Use> {
        Some(Use {
            limit: None,
            from: Some(from),
            gib_hours: Some(figure as f64),
            peak,
            refusals: Some(2 * figure),
            waits: Some(3 * figure),
            waited_ms: Some(4 * figure),
        })
    }

    #[test]
    fn figures_are_the_difference_from_the_last_sample_before() {
        let all = [
            sample(800, 1, 10, 7),
            sample(900, 1, 12, 7),
            sample(1_100, 1, 15, 9),
            sample(1_200, 1, 20, 9),
        ];
        assert_eq!(after(&all, &[]), found(900, 8, Some(9)));
        // A sample at the time itself is before it.
        let exact = [sample(SINCE, 1, 10, 7), sample(1_100, 1, 15, 9)];
        assert_eq!(after(&exact, &[]), found(SINCE, 5, Some(9)));
        // Nothing is known of the time after the last sample.
        assert_eq!(after(&all[..2], &[]), None);
        assert_eq!(after(&[], &[]), None);
    }

    #[test]
    fn a_peak_that_did_not_rise_may_be_older() {
        let all = [sample(900, 1, 1, 7), sample(1_100, 1, 2, 7)];
        assert_eq!(after(&all, &[]), found(900, 1, None));
        // A later group of the same name had a higher one.
        let again = [all[0].clone(), all[1].clone(), sample(1_300, 1_200, 4, 8)];
        assert_eq!(after(&again, &[]), found(900, 5, Some(8)));
        let lower = [all[0].clone(), all[1].clone(), sample(1_300, 1_200, 4, 6)];
        assert_eq!(after(&lower, &[]), found(900, 5, None));
    }

    #[test]
    fn groups_that_were_made_anew_add_up() {
        let all = [
            sample(900, 1, 10, 7),
            sample(1_100, 1, 15, 9),
            // After a reboot.
            sample(1_300, 1_150, 2, 3),
            sample(1_400, 1_150, 3, 4),
            // Its first figures are larger than the last ones before.
            sample(1_600, 1_500, 30, 5),
        ];
        assert_eq!(after(&all, &[]), found(900, 5 + 3 + 30, Some(9)));
        let later = [sample(1_100, SINCE, 5, 2)];
        assert_eq!(after(&later, &[]), found(SINCE, 5, Some(2)));
        // The file system does not tell when a group was made: its figures fall.
        let silent = [
            sample(900, 0, 10, 7),
            sample(1_100, 0, 15, 9),
            sample(1_200, 0, 4, 2),
        ];
        assert_eq!(after(&silent, &[]), found(900, 9, Some(9)));
    }

    #[test]
    fn without_an_earlier_sample_figures_begin_at_the_first() {
        let all = [
            sample(1_100, 1, 10, 7),
            sample(1_200, 1, 15, 9),
            sample(1_300, 1, 16, 9),
        ];
        assert_eq!(after(&all, &[]), found(1_100, 6, Some(9)));
        assert_eq!(after(&all[..1], &[]), None, "nothing to compare it with");
        // The group was made anew between the last save and the begin.
        let anew = [sample(800, 1, 10, 7), sample(1_100, 900, 3, 7)];
        assert_eq!(after(&anew, &[]), None);
    }

    #[test]
    fn a_save_without_a_line_says_that_the_figures_were_0() {
        let all = [sample(1_100, 500, 10, 7), sample(1_200, 500, 15, 7)];
        for saves in [&[600, 1_100][..], &[500], &[1_050]] {
            assert_eq!(after(&all, saves), found(SINCE, 15, Some(7)), "{saves:?}");
        }
        // These were before the group was made, or have the line.
        for saves in [&[][..], &[499], &[1_100, 1_200]] {
            assert_eq!(after(&all, saves), found(1_100, 5, None), "{saves:?}");
        }
    }

    #[test]
    fn groups_of_that_name_before_the_first_save_are_unknown() {
        let all = [sample(1_100, 1_050, 10, 7)];
        for (saves, from) in [
            (&[][..], 1_050),
            (&[1_080], 1_050),
            (&[1_020, 1_080], 1_020),
            (&[900], SINCE),
            (&[SINCE], SINCE),
        ] {
            assert_eq!(after(&all, saves), found(from, 10, Some(7)), "{saves:?}");
        }
    }

    #[test]
    fn figures_never_fall() {
        // Another process has lost a figure while it died.
        let all = [
            sample(900, 1, 10, 7),
            sample(1_100, 1, 9, 7),
            sample(1_200, 1, 11, 8),
        ];
        assert_eq!(after(&all, &[]), found(900, 2, Some(8)));
        let mut user = all.map(|sample| Sample {
            used: Use {
                gib_hours: sample.used.gib_hours,
                ..Use::default()
            },
            ..sample
        });
        user[1].used.gib_hours = Some(10.5);
        let only = Use {
            from: Some(900),
            gib_hours: Some(1.0),
            ..Use::default()
        };
        assert_eq!(after(&user, &[]), Some(only));
    }
}
