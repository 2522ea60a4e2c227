//! Sizes in scripts: `4096`, `300M`, `3M-4K`, `max`.

/// Returns the bytes of a size; `+` and `-` combine sizes.
pub fn parse(text: &str) -> Result<u64, String> {
    if text == "max" {
        return Ok(u64::MAX);
    }
    let wrong = || format!("not a size: {text}");
    let mut total = 0u64;
    let mut rest = text;
    let mut minus = false;
    while !rest.is_empty() {
        let end = rest.find(['+', '-']).unwrap_or(rest.len());
        let (term, tail) = rest.split_at(end);
        let digits = term.trim_end_matches(['K', 'M', 'G']);
        let unit = match &term[digits.len()..] {
            "" => 0,
            "K" => 10,
            "M" => 20,
            "G" => 30,
            _ => return Err(wrong()),
        };
        let bytes = digits.parse::<u64>().map_err(|_| wrong())? << unit;
        total = if minus {
            total.wrapping_sub(bytes)
        } else {
            total.wrapping_add(bytes)
        };
        minus = tail.starts_with('-');
        rest = tail.get(1..).unwrap_or_default();
    }
    Ok(total)
}
