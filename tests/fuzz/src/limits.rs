//! Fuzzing of a damaged limits file: a damaged file never allows more memory than the undamaged
//! file did.

use std::os::unix::fs::FileExt;

use gpulimit_base::device::DeviceId;
use gpulimit_base::units::Size;
use gpulimit_limits::{Key, LimitSet, Limits, Selector};

use crate::numbers::Numbers;
use crate::scratch;

const CAPACITY: u64 = 80 << 30;
const MOST: u64 = 4 << 30;
const GPU: DeviceId = DeviceId::gpu([7; 16]);
const OTHER: DeviceId = DeviceId::gpu([8; 16]);

/// Applies the damage that the fuzz input describes to a valid limits file. Then the remaining
/// input replaces the whole file.
pub fn any(bytes: &[u8]) {
    let path = scratch::path("limits");
    let mut set = LimitSet::all(Size::Bytes(MOST));
    set.set(Selector::Device(OTHER), Key::Max, Size::Bytes(MOST / 2));
    Limits::create(&path, 0o600, &set).expect("made");
    let member = Limits::open(&path).expect("open");
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .expect("there");
    let mut whole = std::fs::read(&path).expect("readable");
    let mut numbers = Numbers(bytes);
    for _ in 0..4 {
        let (Some(kind), Some(at), Some(length)) = (numbers.byte(), numbers.half(), numbers.half())
        else {
            break;
        };
        // Damage mostly the first 512 bytes of the limits file, where most of its content is.
        let at = usize::from(at) % if kind & 0x80 == 0 { 512 } else { whole.len() };
        let end = (at + usize::from(length) % 300 + 1).min(whole.len());
        for byte in &mut whole[at..end] {
            match kind & 3 {
                0 => *byte = 0,
                1 => *byte = 0xff,
                2 => *byte ^= 1 << (kind >> 2 & 7),
                _ => *byte = byte.wrapping_add(1),
            }
        }
        file.write_all_at(&whole, 0).expect("written");
        judge(&member);
        if let Ok(newcomer) = Limits::open(&path) {
            judge(&newcomer);
        }
    }
    std::fs::write(&path, numbers.0).expect("written");
    drop(Limits::open(&path));
}

fn judge(limits: &Limits) {
    for gpu in [GPU, OTHER] {
        let max = limits.bounds(&gpu, CAPACITY).max;
        assert!(max <= MOST, "{max}");
    }
    let _ = (limits.rules(), limits.options(), limits.generation());
}
