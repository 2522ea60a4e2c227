//! Fuzzing of text that people write for gpulimit: sizes, keys, names and GPUs. A text that is
//! accepted must read back as the same value.

use gpulimit_base::device::DeviceId;
use gpulimit_base::units::Size;
use gpulimit_group as group;
use gpulimit_limits::{Setting, parse_duration};
use gpulimit_policy::RequestSelector;

pub fn any(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(size) = text.parse::<Size>() {
        assert_eq!(size.to_string().parse(), Ok(size), "{text}");
        assert!(size == Size::Max || size.resolve(0) <= size.resolve(u64::MAX - 1));
    }
    if let Ok(id) = text.parse::<DeviceId>() {
        assert_eq!(id.to_string().parse(), Ok(id), "{text}");
        assert!(id.matches(text), "{text}");
    }
    if let Ok(()) = group::check_name(text).map(drop) {
        let is_inside = |part: &str| !part.is_empty() && !part.starts_with('.');
        assert!(text.split('/').all(is_inside), "{text}");
    }
    let _ = text.parse::<Setting>();
    let _ = parse_duration(text);
    let _ = RequestSelector::parse(text);
}
