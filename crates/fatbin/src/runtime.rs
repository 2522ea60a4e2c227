//! What an image uses of the device's runtime: it then refers to functions that the driver has.

use super::Needs;

/// Device `new` and `delete` come down to the first two (measured: `free` alone takes what `malloc`
/// does).
pub const NAMES: [(&[u8], Needs); 4] = [
    (b"malloc", MALLOC),
    (b"free", MALLOC),
    (b"__assertfail", ASSERT),
    (b"vprintf", PRINTF),
];
/// Bytes of the longest of them.
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

/// Returns what a reference to the function `name` takes.
pub fn of(name: &[u8]) -> Needs {
    let found = NAMES.iter().find(|(known, _)| *known == name);
    found.map_or(Needs::NOTHING, |(_, use_of)| *use_of)
}
