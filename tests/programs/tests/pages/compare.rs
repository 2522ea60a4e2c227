//! Compares a program's output with a page, apart from pids, times and other numbers that differ in
//! each run.

/// Returns the line with such numbers replaced.
pub fn plain(line: &str) -> String {
    let mut out = String::new();
    // The paths of the driver and the version of the C library are this machine's.
    let mut words: Vec<&str> = line.split(' ').collect();
    for at in 0..words.len() {
        if words[at].ends_with("/libcuda.so.1") {
            words[at] = "libcuda.so.1";
        } else if at > 0 && words[at - 1] == "(glibc" {
            words[at] = "#)";
        }
    }
    let line = words.join(" ");
    let mut rest = line.trim();
    while let Some(first) = rest.chars().next() {
        if first.is_ascii_digit() {
            let number: &str = &rest[..rest
                .find(|c: char| !c.is_ascii_digit() && c != '.')
                .unwrap_or(rest.len())];
            rest = &rest[number.len()..];
            // Sizes are compared, as they are what the page is about. Seconds, and long numbers,
            // differ in each run.
            let is_time = rest.starts_with(" s ") || rest.starts_with(" s,");
            let is_long = number.len() >= 4 && !number.contains('.');
            // A pid may be short, too: the kernel starts again at 300 after the highest one.
            let is_pid = !number.contains('.')
                && (out.trim().is_empty()
                    || ["pid ", "process ", "run-"]
                        .iter()
                        .any(|word| out.ends_with(word)));
            // The number of hooks grows with each new hook.
            let is_hooks = rest == " resolved";
            out.push_str(if is_time || is_long || is_pid || is_hooks {
                "#"
            } else {
                number
            });
        } else if first.is_whitespace() {
            rest = rest.trim_start();
            out.push(' ');
        } else if "─│├└".contains(first) {
            // A column is as wide as its longest pid.
            rest = &rest[first.len_utf8()..];
        } else {
            out.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    out
}

/// Returns the lines that are missing in `found`, and those that are not expected. Programs in the
/// background may print in any order.
pub fn difference(expected: &[String], found: &[String]) -> (Vec<String>, Vec<String>) {
    let mut left: Vec<String> = found.iter().map(|line| plain(line)).collect();
    left.retain(|line| !line.is_empty());
    let mut missing = Vec::new();
    let mut more = false;
    for line in expected {
        let line = plain(line);
        if line == "…" || line.is_empty() {
            more |= !line.is_empty();
            continue;
        }
        match left.iter().position(|found| *found == line) {
            Some(at) => drop(left.remove(at)),
            None => missing.push(line),
        }
    }
    (missing, if more { Vec::new() } else { left })
}

#[test]
fn numbers_that_differ_in_each_run_are_ignored() {
    let same = [
        ("pid 20965 (fill) 1.5 GiB", "pid 101234 (fill) 1.5 GiB"),
        ("pid 20965 (fill) 1.5 GiB", "pid 394 (fill) 1.5 GiB"),
        ("run-20954-580802 uses", "run-395-580802 uses"),
        ("├─ 11496  root   lab", "├─ 394  root lab"),
        ("run-20954-580802 uses", "run-1234-99999 uses"),
        ("11496  root   lab", "114967 root lab"),
        ("x: 3.23 s elapsed", "x: 3.01 s elapsed"),
        ("in /a/libcuda.so.1", "in /b/c/libcuda.so.1"),
        ("ok  hooks  144 resolved", "ok  hooks  160 resolved"),
        ("place (glibc 2.36)", "place (glibc 2.41)"),
    ];
    for (one, other) in same {
        assert_eq!(plain(one), plain(other));
    }
    assert_ne!(plain("1.5 GiB"), plain("1.6 GiB"));
    assert_ne!(plain("exit status 0"), plain("exit status 1"));
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let (missing, more) = difference(&lines("a\nb"), &lines("b\nc\n"));
    assert_eq!((missing, more), (lines("a"), lines("c")));
    assert_eq!(
        difference(&lines("a\n…"), &lines("x\na\ny")),
        (Vec::new(), Vec::new())
    );
}
