//! The variables (global device memory) of loaded code. Their size is a lower bound of the driver's
//! own memory. Also the size of the code itself, which the driver loads function by function.

use parking_lot::Mutex;

use crate::abi::{Context, Device as Ordinal, Opaque};
use crate::account::maps::Map;

struct Loaded {
    device: Ordinal,
    bytes: u64,
    /// The most bytes that the code itself takes; 0 if unknown.
    code: u64,
    /// Whether the bytes were charged without a measurement, because NVML gave no figure.
    is_assumed: bool,
}

/// The variables of a process's loaded code, by module or library and by context.
#[derive(Default)]
pub struct Variables(Mutex<Map<(Opaque, Context), Loaded>>);

impl Variables {
    /// Records a module or library that was loaded in a context of `device`. Its variables take at
    /// least `bytes`, and its code `most` at most; 0 if unknown.
    pub fn insert(&self, code: Opaque, context: Context, device: Ordinal, bytes: u64, most: u64) {
        if bytes > 0 || most > 0 {
            let loaded = Loaded {
                device,
                bytes,
                code: most,
                is_assumed: false,
            };
            self.0.lock().insert((code, context), loaded);
        }
    }

    /// Returns the most bytes that the code of a module takes in a context; `None` if unknown.
    pub fn code_of(&self, module: Opaque, context: Context) -> Option<u64> {
        let all = self.0.lock();
        let loaded = all.get(&(module, context))?;
        (loaded.code > 0).then_some(loaded.code)
    }

    /// Records that the variables of this code were charged without a measurement.
    pub fn note_assumed(&self, code: Opaque, context: Context) {
        if let Some(loaded) = self.0.lock().get_mut(&(code, context)) {
            loaded.is_assumed = true;
        }
    }

    /// Removes the variables of an unloaded module or library. Returns the bytes on `device` that
    /// were charged for them without a measurement.
    pub fn remove(&self, code: Opaque, device: Ordinal) -> u64 {
        let mut all = self.0.lock();
        all.extract_if(|(known, _), loaded| *known == code && loaded.device == device)
            .filter(|(_, loaded)| loaded.is_assumed)
            .fold(0, |sum, (_, loaded)| sum.saturating_add(loaded.bytes))
    }

    /// Removes the variables of code that was loaded in a destroyed context.
    pub fn forget_context(&self, context: Context) {
        self.0.lock().retain(|(_, known), _| *known != context);
    }

    /// Returns the total bytes of variables on a device.
    pub fn on(&self, device: Ordinal) -> u64 {
        let all = self.0.lock();
        all.values()
            .filter(|loaded| loaded.device == device)
            .fold(0, |sum, loaded| sum.saturating_add(loaded.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_go_with_their_code_and_with_their_context() {
        let variables = Variables::default();
        variables.insert(64, 1, 0, 10, 30);
        variables.insert(64, 2, 0, 10, 0);
        variables.insert(128, 1, 0, 5, 0);
        variables.insert(192, 3, 1, 7, 0);
        variables.insert(256, 1, 0, 0, 0);
        let code = |module, context| variables.code_of(module, context);
        assert_eq!(
            [code(64, 1), code(64, 2), code(256, 1)],
            [Some(30), None, None]
        );
        assert_eq!([variables.on(0), variables.on(1)], [25, 7]);
        variables.note_assumed(64, 2);
        assert_eq!([variables.remove(64, 1), variables.remove(64, 0)], [0, 10]);
        assert_eq!(variables.on(0), 5);
        variables.forget_context(1);
        assert_eq!([variables.on(0), variables.on(1)], [0, 7]);
    }
}
