//! Warns about limits that are valid but probably unintended: too small for any program, larger
//! than the GPU, or contradictory.

use super::sizes::{is_above, rule};
use crate::groups;
use crate::machine::nvml::Driver;
use gpulimit_base::device::DeviceId;
use gpulimit_base::units::{Size, gib};
use gpulimit_ledger::Ledger;
use gpulimit_limits::{Key, LimitSet, Selector, Values};

/// A limit with fewer bytes is probably a number without a unit. Even the smallest CUDA context
/// needs more.
const SMALLEST: u64 = 1 << 20;

/// A `max` with fewer bytes has no room for a CUDA context, even on the smallest GPUs.
const SMALLEST_CONTEXT: u64 = 100 << 20;

/// Returns the memory of each GPU that NVML or the group's ledger lists. Leaves out GPUs whose
/// memory is unknown.
pub fn capacities(driver: Option<&Driver>, ledger: Option<&Ledger>) -> Vec<(DeviceId, u64)> {
    let listed = driver.map(Driver::capacities).unwrap_or_default();
    let known = listed.into_iter();
    let mut known: Vec<_> = known.filter_map(|(id, bytes)| Some((id, bytes?))).collect();
    for device in ledger.map(Ledger::devices).unwrap_or_default() {
        if known.iter().all(|(id, _)| *id != device.id) {
            known.push((device.id, device.capacity));
        }
    }
    known
}

/// Returns warnings about these limits, one sentence each.
pub fn of(limits: &LimitSet, gpus: &[(DeviceId, u64)], driver: Option<&Driver>) -> Vec<String> {
    let mut lines = Vec::new();
    let mut say = |line: String| {
        if !lines.contains(&line) {
            lines.push(line);
        }
    };
    for (selector, own) in &limits.rules {
        for (key, size) in own.iter() {
            if let Size::Bytes(bytes @ 1..SMALLEST) = size {
                let meant = match bytes {
                    // The user probably meant GiB, and forgot the unit or wrote K; or meant MiB.
                    bytes if bytes < 1024 => bytes,
                    bytes => bytes.div_ceil(1 << 10),
                };
                say(format!(
                    "{key}={size} is {bytes} bytes, less than any program needs: did you mean \
                     {key}={meant}G?"
                ));
            }
        }
        let mut no_context = |bytes: u64| {
            if let (SMALLEST..SMALLEST_CONTEXT, true) = (bytes, limits.options.count_context)
                && let Some(max) = own.get(Key::Max)
            {
                say(format!(
                    "max={max} leaves no room for a CUDA context, which takes about 500 MiB on a \
                     large GPU: programs will get no GPU memory"
                ));
            }
        };
        if let Some(Size::Bytes(bytes)) = own.get(Key::Max) {
            no_context(bytes);
        }
        let counts = match selector {
            Selector::All => *own,
            Selector::Device(id) => rule(limits, *id),
        };
        let concerned: Vec<&(DeviceId, u64)> = gpus
            .iter()
            .filter(|(id, _)| match selector {
                Selector::Device(own) => own == id,
                Selector::All => limits
                    .rules
                    .iter()
                    .all(|(there, _)| *there != Selector::Device(*id)),
            })
            .collect();
        for (_, capacity) in &concerned {
            if let Some(max @ Size::Percent(_)) = own.get(Key::Max) {
                no_context(max.resolve(*capacity));
            }
        }
        for (id, capacity) in &concerned {
            for (key, size) in own.iter() {
                if let Size::Bytes(bytes) = size
                    && bytes > *capacity
                {
                    say(format!(
                        "{key}={size} is more than the {memory} of GPU {gpu}{effect}",
                        memory = gib(*capacity),
                        gpu = groups::label(*id, driver),
                        effect = match key {
                            Key::Max | Key::High => ": the limit has no effect on that GPU",
                            Key::KeepFree => ": all requests are refused there",
                            Key::Low | Key::Min => "",
                        }
                    ));
                }
            }
            contradictions(counts, Some(*capacity)).for_each(&mut say);
        }
        if concerned.is_empty() {
            contradictions(counts, None).for_each(&mut say);
        }
    }
    lines
}

/// Returns warnings about sizes that are larger than `max`.
fn contradictions(values: Values, capacity: Option<u64>) -> impl Iterator<Item = String> {
    let max = values.get(Key::Max).unwrap_or(Size::Max);
    [Key::High, Key::Low, Key::Min]
        .into_iter()
        .filter_map(move |key| Some((key, values.get(key)?)))
        .filter(move |(_, size)| *size != Size::Max && is_above(*size, max, capacity))
        .map(move |(key, size)| {
            let effect = match key {
                Key::High => "the limit `high` has no effect",
                _ => "the group can never use that much",
            };
            format!("{key}={size} is above max={max}: {effect}")
        })
}

/// Returns warnings with the name of the group that they are about.
pub fn named(group: &str, lines: Vec<String>) -> Vec<String> {
    let line = |line| format!("warning: {group}: {line}");
    lines.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: DeviceId = DeviceId::gpu([1; 16]);
    const B: DeviceId = DeviceId::gpu([2; 16]);
    const GIB: u64 = 1 << 30;

    fn limits(values: &[(Selector, Key, &str)]) -> LimitSet {
        let mut limits = LimitSet::default();
        for (selector, key, size) in values {
            limits.set(*selector, *key, size.parse().expect("a size"));
        }
        limits
    }

    #[track_caller]
    fn expect(values: &[(Selector, Key, &str)], expected: &[&str]) {
        let lines = of(&limits(values), &[(A, 80 * GIB), (B, 40 * GIB)], None);
        assert_eq!(lines, expected);
    }

    #[test]
    fn sensible_limits_cause_no_warning() {
        expect(&[], &[]);
        expect(&[(Selector::All, Key::Max, "40G")], &[]);
        expect(&[(Selector::All, Key::Max, "0")], &[]);
        let half = [
            (Selector::All, Key::Max, "50%"),
            (Selector::All, Key::High, "20G"),
        ];
        expect(&half, &[]);
        let own = [
            (Selector::All, Key::Max, "80G"),
            (Selector::Device(B), Key::Max, "max"),
            (Selector::Device(B), Key::High, "max"),
        ];
        expect(&own, &[]);
    }

    #[test]
    fn a_limit_too_small_for_a_context_causes_a_warning() {
        let said = |max: &str| {
            format!(
                "max={max} leaves no room for a CUDA context, which takes about 500 MiB on a large \
                 GPU: programs will get no GPU memory"
            )
        };
        for (max, shown) in [("10M", "10MiB"), ("99M", "99MiB"), ("0.1%", "0.1%")] {
            expect(&[(Selector::All, Key::Max, max)], &[&said(shown)]);
        }
        for max in ["100M", "1%"] {
            expect(&[(Selector::All, Key::Max, max)], &[]);
        }
        expect(&[(Selector::All, Key::High, "10M")], &[]);
        let mut set = limits(&[(Selector::All, Key::Max, "10M")]);
        set.options.count_context = false;
        assert!(of(&set, &[(A, 80 * GIB)], None).is_empty());
    }

    #[test]
    fn doubtful_limits_cause_warnings() {
        expect(
            &[(Selector::All, Key::Max, "20")],
            &["max=20 is 20 bytes, less than any program needs: did you mean max=20G?"],
        );
        expect(
            &[(Selector::All, Key::Max, "4K")],
            &["max=4KiB is 4096 bytes, less than any program needs: did you mean max=4G?"],
        );
        expect(
            &[(Selector::All, Key::Max, "4095")],
            &["max=4095 is 4095 bytes, less than any program needs: did you mean max=4G?"],
        );
        expect(
            &[(Selector::All, Key::Max, "60G")],
            &[
                "max=60GiB is more than the 40.0 GiB of GPU GPU-0202…: the limit has no effect on \
                 that GPU",
            ],
        );
        let above = [
            (Selector::All, Key::Max, "4G"),
            (Selector::All, Key::High, "5G"),
        ];
        expect(
            &above,
            &["high=5GiB is above max=4GiB: the limit `high` has no effect"],
        );
        // Half of GPU A's memory is above `max`, and half of GPU B's is not. Only A gets a warning.
        let part = [
            (Selector::All, Key::Max, "30G"),
            (Selector::Device(A), Key::Min, "50%"),
            (Selector::Device(B), Key::Min, "50%"),
        ];
        expect(
            &part,
            &["min=50% is above max=30GiB: the group can never use that much"],
        );
    }
}
