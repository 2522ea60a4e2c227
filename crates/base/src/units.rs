//! Parsing of memory sizes that people write, and display of byte counts for people. Every unit is
//! base 1024: `4GB` and `4GiB` are equal.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

/// A memory size as a person wrote it.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash)]
pub enum Size {
    /// A number of bytes.
    Bytes(u64),
    /// A part of the GPU's memory, in hundredths of a percent, 0 to 10,000.
    Percent(u32),
    /// Unlimited.
    Max,
}

/// An amount of a GPU's memory as a person wrote it, before the size of the GPU is known.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash)]
pub enum Extent {
    /// A size.
    Size(Size),
    /// All of the GPU's memory except this number of bytes.
    AllBut(u64),
}

/// Smallest number of bytes accepted in [`Extent::AllBut`]. A smaller number was probably written
/// without its unit.
const SMALLEST_REST: u64 = 1 << 20;

impl fmt::Display for Extent {
    /// Writes the extent as a size such as `2GiB`, or as `-2GiB` for all but 2 GiB. Parsing gives
    /// the same extent.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(size) => size.fmt(f),
            Self::AllBut(less) => write!(f, "-{}", Size::Bytes(*less)),
        }
    }
}

impl From<Size> for Extent {
    fn from(size: Size) -> Self {
        Self::Size(size)
    }
}

impl FromStr for Extent {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let error = |reason| SizeError {
            text: text.into(),
            reason,
            extent: true,
        };
        match text.trim().strip_prefix('-') {
            None => parse(text.trim()).map(Self::Size).map_err(error),
            Some(less) => match parse(less) {
                Ok(Size::Bytes(less)) if less >= SMALLEST_REST => Ok(Self::AllBut(less)),
                Ok(Size::Bytes(_)) => Err(error(Reason::RestWithoutUnit)),
                Ok(_) => Err(error(Reason::RestNotBytes)),
                Err(Reason::Empty) => Err(error(Reason::NoNumber)),
                Err(reason) => Err(error(reason)),
            },
        }
    }
}

/// The number that stands for 100% in hundredths of a percent.
const WHOLE: u32 = 10_000;

impl Size {
    /// Returns this size in bytes on a GPU with `capacity` bytes of memory; `u64::MAX` for
    /// [`Size::Max`].
    pub fn resolve(self, capacity: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(part) => {
                let bytes = u128::from(capacity) * u128::from(part.min(WHOLE)) / u128::from(WHOLE);
                u64::try_from(bytes).unwrap_or(u64::MAX)
            }
            Self::Max => u64::MAX,
        }
    }
}

impl fmt::Display for Size {
    /// Writes the size in its shortest exact form: `4GiB`, `1536MiB`, `4097`, `12.5%`, `max`.
    /// Parsing this form gives the same size.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Max => f.write_str("max"),
            Self::Percent(part) => {
                write!(f, "{}", part / 100)?;
                match (part / 10 % 10, part % 10) {
                    (0, 0) => {}
                    (tenths, 0) => write!(f, ".{tenths}")?,
                    (tenths, hundredths) => write!(f, ".{tenths}{hundredths}")?,
                }
                f.write_str("%")
            }
            Self::Bytes(bytes) => {
                let exact = |(_, shift): &&(&str, u32)| bytes.trailing_zeros() >= *shift;
                match UNITS.iter().rev().find(exact) {
                    Some((unit, shift)) if bytes != 0 => write!(f, "{}{unit}", bytes >> shift),
                    _ => write!(f, "{bytes}"),
                }
            }
        }
    }
}

/// The units of sizes, with the powers of two that they stand for.
const UNITS: [(&str, u32); 4] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        parse(text.trim()).map_err(|reason| SizeError {
            text: text.into(),
            reason,
            extent: false,
        })
    }
}

fn parse(text: &str) -> Result<Size, Reason> {
    if text.is_empty() {
        return Err(Reason::Empty);
    }
    if text.eq_ignore_ascii_case("max") {
        return Ok(Size::Max);
    }
    if text.starts_with('-') && text[1..].starts_with(|c: char| c.is_ascii_digit()) {
        return Err(Reason::Negative);
    }
    let number = Number::read(text)?;
    let unit = text[number.length..].trim_start();
    if unit == "%" {
        let part = number.scaled(100).ok_or(Reason::OverWhole)?;
        return match u32::try_from(part) {
            Ok(part) if part < WHOLE || (part == WHOLE && !number.beyond(100)) => {
                Ok(Size::Percent(part))
            }
            _ => Err(Reason::OverWhole),
        };
    }
    let shift = shift(unit).ok_or(match unit.starts_with(',') {
        true => Reason::Comma,
        false => Reason::Unit,
    })?;
    if shift == 0 && number.fraction.is_some() {
        return Err(Reason::PartOfByte);
    }
    let bytes = number.scaled(1 << shift).ok_or(Reason::Overflow)?;
    Ok(Size::Bytes(bytes))
}

/// Returns the power of two that a unit such as `KiB` stands for, ignoring case.
fn shift(unit: &str) -> Option<u32> {
    let bytes = unit.as_bytes();
    let (Some(first), rest) = (bytes.first(), bytes.get(1..).unwrap_or_default()) else {
        return Some(0);
    };
    let power = match first.to_ascii_uppercase() {
        b'B' if rest.is_empty() => return Some(0),
        b'K' => 10,
        b'M' => 20,
        b'G' => 30,
        b'T' => 40,
        _ => return None,
    };
    let known = ["", "b", "i", "ib"];
    known
        .iter()
        .any(|end| rest.eq_ignore_ascii_case(end.as_bytes()))
        .then_some(power)
}

/// A decimal number at the beginning of a text.
struct Number {
    whole: u128,
    /// The digits after the decimal point, as a number and its divisor. The divisor is a power of
    /// ten.
    fraction: Option<(u128, u128)>,
    /// Length of the written number in bytes.
    length: usize,
}

/// Number of digits used after the decimal point. Further digits would add less than one byte to a
/// size.
const FRACTION_DIGITS: usize = 18;

impl Number {
    fn read(text: &str) -> Result<Self, Reason> {
        let digits = |from: usize| {
            let tail = &text.as_bytes()[from..];
            tail.iter().take_while(|c| c.is_ascii_digit()).count()
        };
        let whole_end = digits(0);
        if whole_end == 0 {
            return Err(Reason::NoNumber);
        }
        let whole = text[..whole_end].parse().map_err(|_| Reason::Overflow)?;
        if !text[whole_end..].starts_with('.') {
            return Ok(Self {
                whole,
                fraction: None,
                length: whole_end,
            });
        }
        let from = whole_end + 1;
        let count = digits(from);
        if count == 0 {
            return Err(Reason::NoNumber);
        }
        let kept = count.min(FRACTION_DIGITS);
        let value = text[from..from + kept]
            .parse()
            .map_err(|_| Reason::NoNumber)?;
        let scale = (0..kept).fold(1, |scale: u128, _| scale * 10);
        Ok(Self {
            whole,
            fraction: Some((value, scale)),
            length: from + count,
        })
    }

    /// Returns the decimal number times `by`, rounded down; `None` if the result exceeds 64 bits.
    fn scaled(&self, by: u64) -> Option<u64> {
        let (value, scale) = self.fraction.unwrap_or((0, 1));
        let by = u128::from(by);
        let total = self
            .whole
            .checked_mul(by)?
            .checked_add(value * by / scale)?;
        u64::try_from(total).ok()
    }

    /// Returns whether the decimal number is greater than `whole`, even if only by a fraction.
    fn beyond(&self, whole: u128) -> bool {
        self.whole > whole || (self.whole == whole && self.fraction.is_some_and(|(v, _)| v != 0))
    }
}

/// The error for a text that is not a size.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SizeError {
    text: Box<str>,
    reason: Reason,
    /// Whether the text was parsed as an [`Extent`], so that the message also names `-2G` as an
    /// accepted form.
    extent: bool,
}

#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum Reason {
    Empty,
    Negative,
    NoNumber,
    Comma,
    Unit,
    PartOfByte,
    Overflow,
    OverWhole,
    RestWithoutUnit,
    RestNotBytes,
}

/// The end of every message about an invalid size: the accepted forms of a size.
const ACCEPTED: &str = "expected bytes, a number with K, M, G or T (base 1024, also KiB or KB), \
                        a part of the GPU such as 50%, or max";

/// The form that is accepted for an [`Extent`] in addition to the forms of a size.
const ACCEPTED_TOO: &str = ", or -2G for all of the GPU except 2 GiB";

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more = if self.extent { ACCEPTED_TOO } else { "" };
        let why = match self.reason {
            Reason::Empty => return write!(f, "empty size: {ACCEPTED}{more}"),
            Reason::Negative => "the size is negative",
            Reason::NoNumber => "the size does not begin with a decimal number",
            Reason::Comma => "a size has a decimal point, as in 1.5G",
            Reason::Unit => "the size has an unknown unit",
            Reason::PartOfByte => "the size is not a whole number of bytes",
            Reason::Overflow => "the size has more than 64 bits",
            Reason::OverWhole => "the size is more than 100%",
            Reason::RestWithoutUnit => "the size leaves out less than 1 MiB of the GPU",
            Reason::RestNotBytes => "only a number of bytes can follow the minus sign",
        };
        write!(
            f,
            "invalid size '{}': {why}; {ACCEPTED}{more}",
            self.text.escape_debug()
        )
    }
}

impl Error for SizeError {}

/// Displays a byte count for people, with one decimal in a suitable unit: `3.6 GiB`, `518.0 MiB`,
/// `17 B`. Does not allocate.
pub const fn gib(bytes: u64) -> Gib {
    Gib(bytes)
}

/// A byte count that is displayed for people: see [`gib`].
#[derive(Copy, Clone, Debug)]
pub struct Gib(u64);

impl Gib {
    /// Displays this byte count in the unit of `other`, without the unit's name: the `3.6` in `3.6
    /// of 4.0 GiB`. Where that is bytes and this is more, with its own unit: `3.6 GiB of 0 B`.
    pub const fn in_unit_of(self, other: u64) -> Figure {
        Figure {
            bytes: self.0,
            like: other,
        }
    }

    /// Returns what stands before this byte count where it is less than another one and reads the
    /// same: `less than `.
    pub fn less_than(self, other: u64) -> &'static str {
        let reads = |bytes: Gib| match bytes.unit() {
            (_, 0) => (0, bytes.0),
            (_, shift) => (shift, bytes.tenths(shift)),
        };
        match self.0 < other && reads(self) == reads(Gib(other)) {
            true => "less than ",
            false => "",
        }
    }

    /// Returns this byte count in tenths of a unit of at least 16 bytes, rounded.
    fn tenths(self, shift: u32) -> u64 {
        ((u128::from(self.0) * 10 + (1 << (shift - 1))) >> shift) as u64
    }

    /// Returns the name and the power of two of the unit in which this byte count is displayed.
    /// Below 1 KiB, the unit is bytes.
    fn unit(self) -> (&'static str, u32) {
        if self.0 < 1024 {
            return ("B", 0);
        }
        // Choose the next larger unit if rounding gives 1024.0 of a unit.
        let fits = |(_, shift): &&(&'static str, u32)| self.tenths(*shift) < 10_240;
        *UNITS.iter().find(fits).unwrap_or(&UNITS[3])
    }
}

impl fmt::Display for Gib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, _) = self.unit();
        write!(f, "{} {unit}", self.in_unit_of(self.0))
    }
}

/// A byte count that is displayed in the unit of another byte count: see [`Gib::in_unit_of`].
#[derive(Copy, Clone, Debug)]
pub struct Figure {
    bytes: u64,
    like: u64,
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Gib(self.like).unit() {
            (_, 0) if self.bytes < 1024 => write!(f, "{}", self.bytes),
            (_, 0) => Gib(self.bytes).fmt(f),
            (_, shift) => {
                let tenths = Gib(self.bytes).tenths(shift);
                write!(f, "{}.{}", tenths / 10, tenths % 10)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> u64 {
        match text.parse() {
            Ok(Size::Bytes(bytes)) => bytes,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn less_that_reads_the_same_is_said_to_be_less() {
        let said = |bytes: u64, other| format!("{}{}", gib(bytes).less_than(other), gib(bytes));
        assert_eq!(said((2 << 30) - 1, 2 << 30), "less than 2.0 GiB");
        assert_eq!(said(2 << 30, 2 << 30), "2.0 GiB");
        assert_eq!(said(1900 << 20, 2 << 30), "1.9 GiB");
        assert_eq!(said(1022, 1023), "1022 B");
    }

    #[test]
    fn a_count_beside_a_few_bytes_has_its_own_unit() {
        let beside = |bytes, other| gib(bytes).in_unit_of(other).to_string();
        assert_eq!(beside(750 << 20, 0), "750.0 MiB");
        assert_eq!(beside(750 << 20, 1 << 30), "0.7");
        assert_eq!(beside(100, 0), "100");
    }

    #[test]
    fn every_spelling_is_base_1024() {
        for text in [
            "4G",
            "4g",
            "4GB",
            "4gb",
            "4Gi",
            "4GiB",
            "4 GiB",
            " 4  gib ",
            "4096M",
            "4294967296",
            "4294967296B",
        ] {
            assert_eq!(bytes(text), 4 << 30, "{text}");
        }
        assert_eq!(bytes("0"), 0);
        assert_eq!(bytes("1k"), 1 << 10);
        assert_eq!(bytes("1Ti"), 1 << 40);
        assert_eq!(bytes("18446744073709551615"), u64::MAX);
    }

    #[test]
    fn decimals_round_down() {
        assert_eq!(bytes("1.5G"), 3 << 29);
        assert_eq!(bytes("0.1K"), 102);
        assert_eq!(bytes("1.9999999999999999999999999K"), 2047);
    }

    #[test]
    fn percent() {
        assert_eq!("50%".parse(), Ok(Size::Percent(5000)));
        assert_eq!("12.5 %".parse(), Ok(Size::Percent(1250)));
        assert_eq!("33.339%".parse(), Ok(Size::Percent(3333)));
        assert_eq!("100.00%".parse(), Ok(Size::Percent(10_000)));
        assert_eq!("0%".parse(), Ok(Size::Percent(0)));
        assert_eq!(Size::Percent(2500).resolve(80 << 30), 20 << 30);
        assert_eq!(Size::Percent(10_000).resolve(u64::MAX), u64::MAX);
    }

    #[test]
    fn other_text_is_an_error_that_shows_it() {
        for text in [
            "",
            " ",
            "-1",
            "-4G",
            "G",
            "GiB",
            "4Q",
            "4GG",
            "4GiBs",
            "4 G B",
            "4,5G",
            "1e9",
            "0x10",
            "NaN",
            "inf",
            "+4G",
            ".5G",
            "5.G",
            "1.5",
            "1.5B",
            "1.2.3G",
            "101%",
            "100.001%",
            "-5%",
            "%",
            "max5",
            "unlimited",
            "4G 5",
            "18446744073709551616",
            "16777216T",
            "999999999999999999999999999999999999999999T",
            "4\u{a0}é",
        ] {
            let error = text.parse::<Size>().expect_err(text).to_string();
            assert!(error.contains("expected bytes"), "{error}");
            assert!(error.contains(&*text.escape_debug().to_string()), "{error}");
        }
    }

    #[test]
    fn a_decimal_comma_is_named() {
        for text in ["1,5G", "0,5"] {
            let error = text.parse::<Size>().expect_err(text).to_string();
            assert!(error.contains("a decimal point, as in 1.5G"), "{error}");
        }
    }

    #[test]
    fn printed_sizes_read_back() {
        let sizes = [0, 1, 1023, 1024, 4097, 3 << 29, 4 << 30, 5 << 40, u64::MAX];
        let percents = [0, 1, 10, 100, 1250, 3333, 10_000];
        let all = sizes
            .map(Size::Bytes)
            .into_iter()
            .chain(percents.map(Size::Percent))
            .chain([Size::Max]);
        for size in all {
            assert_eq!(size.to_string().parse(), Ok(size), "{size}");
        }
        assert_eq!(Size::Bytes(3 << 29).to_string(), "1536MiB");
        assert_eq!(Size::Percent(1205).to_string(), "12.05%");
    }

    #[test]
    fn a_minus_means_all_but_that_many_bytes() {
        let read = |text: &str| text.parse::<Extent>();
        assert_eq!(read("-2G"), Ok(Extent::AllBut(2 << 30)));
        assert_eq!(read(" -1.5 GiB "), Ok(Extent::AllBut(3 << 29)));
        assert_eq!(read("4G"), Ok(Extent::Size(Size::Bytes(4 << 30))));
        assert_eq!(read("50%"), Ok(Extent::Size(Size::Percent(5000))));
        for text in ["-2G", "4GiB", "max", "50%"] {
            let extent = read(text).expect(text);
            assert_eq!(read(&extent.to_string()), Ok(extent));
        }
        for text in ["-", "--2G", "-2", "-50%", "-max", "-0", "-G", "- ", "+2G"] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.contains("or -2G"), "{error}");
            assert!(error.contains(&format!("'{text}'")), "{error}");
        }
    }

    #[test]
    fn bytes_for_people() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (518 << 20, "518.0 MiB"),
            ((1 << 30) - 1, "1.0 GiB"),
            (3_865_470_566, "3.6 GiB"),
            (4 << 30, "4.0 GiB"),
            (u64::MAX, "16777216.0 TiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(gib(bytes).to_string(), text);
        }
    }
}
