//! The measurements of peaks that the program has begun and not yet ended.
//!
//! The slot keeps one peak that can be restarted. Each begin, look and end restarts it, and what it
//! was counts for all open measurements on the device. So a charge costs the same with any number
//! of them.

use parking_lot::Mutex;

use super::Process;
use super::device::Device;

/// The open measurements of a process.
#[derive(Default)]
pub struct Peaks(Mutex<Open>);

#[derive(Default)]
struct Open {
    /// The number of the last measurement.
    last: u64,
    measurements: Vec<Measurement>,
}

struct Measurement {
    number: u64,
    device: &'static Device,
    /// The largest usage so far, in bytes.
    bytes: u64,
}

impl Open {
    /// Counts the peak of the device so far for its open measurements.
    fn count(&mut self, device: &'static Device) {
        let bytes = device.book.group.restart_peak();
        for measurement in &mut self.measurements {
            if measurement.device.ordinal == device.ordinal {
                measurement.bytes = measurement.bytes.max(bytes);
            }
        }
    }
}

impl Process {
    /// Begins to measure this process's peak on a device. Returns the number of the measurement.
    pub fn begin_peak(&'static self, device: &'static Device) -> u64 {
        let mut open = self.peaks.0.lock();
        open.count(device);
        open.last += 1;
        let measurement = Measurement {
            number: open.last,
            device,
            bytes: device.book.group.restart_peak(),
        };
        open.measurements.push(measurement);
        open.last
    }

    /// Returns the largest usage since the begin of a measurement, in bytes; `None` without such a
    /// measurement. With `ends` the measurement is no longer open.
    pub fn peak(&'static self, number: u64, ends: bool) -> Option<u64> {
        let mut open = self.peaks.0.lock();
        let mut places = open.measurements.iter();
        let at = places.position(|measurement| measurement.number == number)?;
        let device = open.measurements.get(at)?.device;
        open.count(device);
        match ends {
            true => Some(open.measurements.swap_remove(at).bytes),
            false => open.measurements.get(at).map(|it| it.bytes),
        }
    }
}
