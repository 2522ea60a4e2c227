//! Functions of the device's runtime, such as device `malloc`. Images call these functions by name.

use super::Needs;

/// The names of the runtime functions, and the memory that each function needs. `free` alone needs
/// as much as `malloc`.
pub const NAMES: [(&[u8], Needs); 4] = [
    (b"malloc", MALLOC),
    (b"free", MALLOC),
    (b"__assertfail", ASSERT),
    (b"vprintf", PRINTF),
];
/// Length of the longest name of a runtime function in bytes.
pub const LONGEST: usize = b"__assertfail".len();
const MALLOC: Needs = Needs {
    device_malloc: true,
    ..Needs::NOTHING
};
const ASSERT: Needs = Needs {
    device_assert: true,
    ..Needs::NOTHING
};
const PRINTF: Needs = Needs {
    device_printf: true,
    ..Needs::NOTHING
};

/// Returns the memory needs of an image that refers to the function `name`.
pub fn of(name: &[u8]) -> Needs {
    let found = NAMES.iter().find(|(known, _)| *known == name);
    found.map_or(Needs::NOTHING, |(_, use_of)| *use_of)
}
