//! The past usage of a group on one GPU, in periods of equal length without a gap.
//!
//! The ledger records the usage only when a member charges. Between two charges the usage only
//! falls. So a period without a charge has an upper bound, from the charges before it, and a lower
//! bound, from the charges after it or from the present usage. If both are equal, the usage of this
//! period is known.

use gpulimit_ledger::{Extremes, Period, Resolution};

/// The usage in one period of the past, in bytes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Span {
    /// Begin of the period, in seconds since 1970.
    pub start: u64,
    /// The largest and the smallest usage that the group is known to have had in this period;
    /// `None` if unknown.
    pub known: Option<Extremes>,
    /// A lower bound of the usage in this period.
    pub at_least: u64,
    /// An upper bound of the usage in this period; `None` if the ledger has no earlier charge.
    pub at_most: Option<u64>,
    /// Number of refused requests.
    pub refusals: u32,
    /// Seconds for which requests waited that ended in this period.
    pub waited: u32,
    /// Number of processes that were killed to make room.
    pub kills: u32,
}

impl Span {
    /// Returns the largest usage that the group is known to have had in this period; `None` if the
    /// ledger says nothing of this time.
    pub fn highest(&self) -> Option<u64> {
        let known = self.known.map(|usage| usage.max);
        known.or(self.at_most.map(|_| self.at_least))
    }

    /// Returns the smallest usage in this period; `None` if the ledger says nothing of this time.
    pub fn floor(&self) -> Option<u64> {
        (self.known.is_some() || self.at_most.is_some()).then_some(self.at_least)
    }
}

/// A time window of the past, and what is known at its end.
#[derive(Copy, Clone, Debug)]
pub struct Window {
    pub resolution: Resolution,
    /// Begin of the window, in seconds since 1970.
    pub since: u64,
    /// The present time, in seconds since 1970.
    pub now: u64,
    /// The present usage in bytes.
    pub usage: u64,
}

impl Window {
    /// Returns the window from `since` to `now` with the finest resolution whose ring covers it.
    /// The window is cut to what the coarsest ring holds.
    pub fn new(since: u64, now: u64, usage: u64) -> Self {
        let covers = |window: &Self| window.since <= since;
        let whole = |resolution| Self::whole(resolution, now, usage);
        let finest = Resolution::ALL.into_iter().map(whole).find(covers);
        let finest = finest.unwrap_or(whole(Resolution::Quarters));
        Self {
            since: since.max(finest.since),
            ..finest
        }
    }

    /// Returns the window of all that the ring of a resolution holds.
    pub fn whole(resolution: Resolution, now: u64, usage: u64) -> Self {
        let length = resolution.seconds() * resolution.periods() as u64;
        Self {
            resolution,
            since: now.saturating_sub(length),
            now,
            usage,
        }
    }

    /// Returns the periods of the window, oldest first. `rings` returns the recorded periods of a
    /// resolution, oldest first. The last period includes the present usage.
    pub fn spans(&self, rings: impl Fn(Resolution) -> Vec<Period>) -> Vec<Span> {
        let length = self.resolution.seconds();
        let first = self.since / length;
        let count = (self.now / length).saturating_sub(first) as usize + 1;
        let mut spans: Vec<Span> = (first..)
            .take(count)
            .map(|period| Span {
                start: period * length,
                ..Span::default()
            })
            .collect();
        for period in rings(self.resolution) {
            // The clock of the member that wrote the last period may be ahead of this process's.
            let Some(at) = (period.start / length).checked_sub(first) else {
                continue;
            };
            let span = &mut spans[(at as usize).min(count - 1)];
            span.refusals += period.refusals;
            span.waited += period.waited;
            span.kills += period.kills;
            span.known = joined(span.known, period.usage);
        }
        let present = Extremes {
            max: self.usage,
            min: self.usage,
        };
        bound(&mut spans, self.carried(rings), self.usage);
        if let Some(last) = spans.last_mut() {
            last.known = joined(last.known, Some(present));
            last.at_most = last.at_most.map(|most| most.max(self.usage));
        }
        spans
    }

    /// Returns an upper bound of the usage at the begin of the window: the largest usage of the
    /// last charges before it. Returns `None` if no such charge is recorded.
    fn carried(&self, rings: impl Fn(Resolution) -> Vec<Period>) -> Option<u64> {
        Resolution::ALL.into_iter().find_map(|resolution| {
            let begin = self.since / self.resolution.seconds() * self.resolution.seconds();
            let mut upper = None;
            for period in rings(resolution) {
                let Some(usage) = period.usage.filter(|_| period.start < begin) else {
                    continue;
                };
                // The charge of a period that reaches into the window may be in the window. Then
                // the last charge before the window is in an earlier period.
                upper = match period.start + resolution.seconds() <= begin {
                    true => Some(usage.max),
                    false => upper.map(|before: u64| before.max(usage.max)),
                };
            }
            upper
        })
    }
}

fn joined(one: Option<Extremes>, other: Option<Extremes>) -> Option<Extremes> {
    match (one, other) {
        (Some(one), Some(other)) => Some(Extremes {
            max: one.max.max(other.max),
            min: one.min.min(other.min),
        }),
        (one, other) => one.or(other),
    }
}

/// Sets the bounds of all periods. `upper` is the upper bound before the first one, and `present`
/// the usage after the last one.
fn bound(spans: &mut [Span], mut upper: Option<u64>, present: u64) {
    for span in &mut *spans {
        span.at_most = match span.known {
            Some(usage) => upper.map(|upper| upper.max(usage.max)),
            None => upper,
        };
        upper = span.known.map(|usage| usage.max).or(upper);
    }
    let mut lower = present;
    for span in spans.iter_mut().rev() {
        span.at_least = span.known.map_or(lower, |usage| usage.min.min(lower));
        lower = span.known.map_or(lower, |usage| usage.min);
        // Members can write any figure, so the bounds may contradict each other.
        span.at_most = span.at_most.map(|most| most.max(span.at_least));
        if span.known.is_none() && span.at_most == Some(span.at_least) {
            let (max, min) = (span.at_least, span.at_least);
            span.known = Some(Extremes { max, min });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A multiple of a quarter of an hour.
    const NOW: u64 = 1_800_000_000;

    fn period(start: u64, max: u64, min: u64) -> Period {
        Period {
            start,
            usage: Some(Extremes { max, min }),
            ..Period::default()
        }
    }

    /// Returns the last `seconds` seconds, with these periods of seconds and of minutes.
    fn spans(seconds: u64, usage: u64, fine: &[Period], minutes: &[Period]) -> Vec<Span> {
        let window = Window::new(NOW + 1 - seconds, NOW, usage);
        assert_eq!(window.resolution, Resolution::Seconds);
        window.spans(|resolution| match resolution {
            Resolution::Seconds => fine.to_vec(),
            Resolution::Minutes => minutes.to_vec(),
            Resolution::Quarters => Vec::new(),
        })
    }

    /// The known extremes and the bounds of a period.
    type Figures = (Option<(u64, u64)>, u64, Option<u64>);

    fn figures(spans: &[Span]) -> Vec<Figures> {
        let known = |span: &Span| span.known.map(|usage| (usage.max, usage.min));
        let all = |span: &Span| (known(span), span.at_least, span.at_most);
        spans.iter().map(all).collect()
    }

    #[test]
    fn the_finest_ring_that_covers_the_window_is_chosen() {
        for (length, resolution) in [
            (0, Resolution::Seconds),
            (600, Resolution::Seconds),
            (601, Resolution::Minutes),
            (86_400, Resolution::Minutes),
            (86_401, Resolution::Quarters),
            (7_000_000, Resolution::Quarters),
        ] {
            let window = Window::new(NOW - length, NOW, 0);
            assert_eq!(window.resolution, resolution, "{length}");
            let spans = window.spans(|_| Vec::new());
            // The window begins and ends in the middle of a period.
            let least = length.min(604_800) / resolution.seconds() + 1;
            let count = spans.len() as u64;
            assert!((least..=least + 1).contains(&count), "{length}: {count}");
        }
    }

    #[test]
    fn usage_only_falls_between_two_charges() {
        let fine = [period(NOW - 4, 9, 0), period(NOW - 1, 7, 5)];
        assert_eq!(
            figures(&spans(6, 2, &fine, &[])),
            [
                // Before the first charge the usage is unknown.
                (None, 0, None),
                (Some((9, 0)), 0, None),
                (None, 5, Some(9)),
                (None, 5, Some(9)),
                // It may have been higher before the charge, and lower after it.
                (Some((7, 5)), 2, Some(9)),
                (Some((2, 2)), 2, Some(7)),
            ]
        );
    }

    #[test]
    fn usage_between_equal_bounds_is_known() {
        let fine = [period(NOW - 3, 9, 0)];
        let known = (Some((9, 9)), 9, Some(9));
        assert_eq!(figures(&spans(3, 9, &fine, &[])), [known; 3]);
    }

    #[test]
    fn coarser_rings_tell_what_was_used_before_the_window() {
        let minute = |ago: u64| (NOW - ago) / 60 * 60;
        let at_most = |minutes: &[Period]| spans(3, 1, &[], minutes)[0].at_most;
        assert_eq!(at_most(&[period(minute(120), 8, 2)]), Some(8));
        // The last minute before the window counts alone.
        let two = [period(minute(180), 8, 2), period(minute(120), 6, 2)];
        assert_eq!(at_most(&two), Some(6));
        // The charge of a minute that reaches into the window may be later than its begin.
        let window = Window::new(NOW + 30, NOW + 40, 1);
        let first = |minutes: &[Period]| {
            let spans = window.spans(|resolution| match resolution {
                Resolution::Minutes => minutes.to_vec(),
                _ => Vec::new(),
            });
            spans[0].at_most
        };
        assert_eq!(first(&[period(NOW - 60, 4, 2), period(NOW, 9, 2)]), Some(9));
        assert_eq!(first(&[period(NOW - 60, 9, 2), period(NOW, 4, 2)]), Some(9));
        assert_eq!(first(&[period(NOW, 9, 2)]), None);
    }

    #[test]
    fn figures_that_contradict_each_other_do_no_harm() {
        // The present usage is above the last recorded one.
        let fine = [period(NOW - 3, 9, 0), period(NOW + 1, 3, 1)];
        for span in spans(3, 40, &fine, &[]) {
            assert!(span.at_most.is_none_or(|most| most >= span.at_least));
        }
        // A period of the future counts as the last one, and later ones than the window's end too.
        let last = spans(3, 2, &fine, &[]).pop().expect("a period");
        assert_eq!(last.known, Some(Extremes { max: 3, min: 1 }));
    }

    #[test]
    fn counts_are_in_their_periods() {
        let counted = Period {
            start: NOW - 1,
            refusals: 3,
            waited: 4,
            kills: 5,
            ..Period::default()
        };
        let spans = spans(3, 0, &[counted], &[]);
        let counts = |span: &Span| (span.refusals, span.waited, span.kills);
        let all: Vec<_> = spans.iter().map(counts).collect();
        assert_eq!(all, [(0, 0, 0), (3, 4, 5), (0, 0, 0)]);
        assert_eq!(spans[1].known, None);
    }
}
