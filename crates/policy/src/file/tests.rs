use super::*;

fn read(text: &str) -> Result<Policy, Vec<Mistake>> {
    let policy = parse(Path::new("p.toml"), text);
    match policy.mistakes.is_empty() {
        true => Ok(policy),
        false => Err(policy.mistakes),
    }
}

/// Returns all mistakes of an invalid file.
#[track_caller]
fn wrong(text: &str) -> Vec<String> {
    let mistakes = read(text).expect_err(text);
    mistakes.iter().map(Mistake::to_string).collect()
}

#[test]
fn a_file_with_every_key_is_read() {
    let policy = read(
        r#"
[defaults]
on_error = "open"
wait_timeout = "5m"

[group.lab]
max = "80%"

[group."lab/{user}"]
max = { all = "20%", "0" = "4G", GPU-1a2b = "max", "0000:3b:00.0" = "1G" }
high = "15%"
low = 1073741824
count_context = false
wait_timeout = 30
suspended.max = "64G"
owner = "{user}"
members = "@lab"
users = "alice"
unix_group = ["lab", "guests"]

[[rule]]
user = "*"
executable = "/usr/bin/X*"
group = "none"
on_error = "closed"

[[rule]]
cgroup = ["/a/*", "/b/*"]
container = "*"
group = "lab"
"#,
    )
    .expect("right");
    assert_eq!(
        policy.defaults.options,
        [(OptionKey::WaitTimeout, "5m".into())]
    );
    let names: Vec<_> = policy
        .groups
        .iter()
        .map(|group| (group.name.value.as_str(), group.name.line))
        .collect();
    assert_eq!(names, [("lab", 6), ("lab/{user}", 9)]);
    let each = &policy.groups[1];
    let sizes: Vec<_> = each
        .settings
        .sizes
        .iter()
        .map(|(key, gpu, size)| format!("{key} {} {size}", gpu.value))
        .collect();
    assert_eq!(sizes.len(), 6, "{sizes:?}");
    for expected in [
        "max all 20%",
        "max 0 4GiB",
        "max GPU-1a2b max",
        "max 0000:3b:00.0 1GiB",
        "high all 15%",
        "low all 1GiB",
    ] {
        assert!(
            sizes.iter().any(|size| size == expected),
            "{expected}: {sizes:?}"
        );
    }
    assert_eq!(
        each.settings.options,
        [
            (OptionKey::CountContext, "false".into()),
            (OptionKey::SuspendedMax, "64G".into()),
            (OptionKey::WaitTimeout, "30".into())
        ]
    );
    assert_eq!(
        each.unix_group.as_ref().map(|list| list.value.len()),
        Some(2)
    );
    assert_eq!(policy.rules[0].on_error, OnError::Closed);
    assert_eq!(policy.rules[1].on_error, OnError::Open);
    assert_eq!(policy.rules[1].line, 27);
}

#[test]
fn an_empty_file_has_no_groups_and_no_rules() {
    let policy = read("# nothing\n").expect("right");
    assert!(policy.groups.is_empty() && policy.rules.is_empty());
}

#[test]
fn all_mistakes_are_reported_at_once_with_their_lines() {
    let said = wrong(
        r#"grup = 1
[defaults]
on_eror = "open"
[group.lab]
mx = "4G"
max = "lots"
owner = 5
[group."b"]
on_limit = "never"
high = { "0" = "4Q", "1" = [7] }
[[rule]]
usr = "alice"
group = "lab"
[[rule]]
max = "4G"
user = []
"#,
    );
    let expected = [
        (1, "unknown key 'grup' in the file, did you mean group?"),
        (
            3,
            "unknown key 'on_eror' in [defaults], did you mean on_error?",
        ),
        (5, "unknown key 'mx' in group 'lab', did you mean max?"),
        (6, "max: invalid size 'lots'"),
        (7, "invalid value '5': expected a text"),
        (
            9,
            "invalid value 'never' of on_limit: expected fail or wait",
        ),
        (10, "high: invalid size '4Q'"),
        (10, "invalid value '[7]': expected a size such as"),
        (12, "unknown key 'usr' in rule 1, did you mean user?"),
        (14, "rule 2 has no group"),
        (15, "'max' is a key of groups, not of rule 2"),
        (16, "the list [] is empty"),
    ];
    for (line, why) in expected {
        let at = format!("p.toml:{line}: {why}");
        assert!(
            said.iter().any(|one| one.starts_with(&at)),
            "{at}\n{said:#?}"
        );
    }
    assert!(said.iter().all(|one| one.lines().count() == 1), "{said:#?}");
}

#[test]
fn each_mistake_has_its_own_message() {
    for (text, line, why) in [
        ("group = 1", 1, "[group.\"NAME\"]"),
        ("[group]\nlab = 1", 2, "[group.\"lab\"]"),
        ("[rule]\ngroup = 'a'", 1, "[[rule]]"),
        ("rule = [1]", 1, "[[rule]]"),
        ("defaults = 1", 1, "[defaults]"),
        ("[group.lab]\nmax = '4G'\nmax = '5G'", 3, "duplicate"),
        ("[group.lab\nmax = '4G'", 1, "[group.lab"),
        ("[group.lab.alice]\nmax = '4G'", 1, "[group.\"lab/alice\"]"),
        ("[group.lab]\nmax = ''", 2, "empty size"),
        (
            "[group.lab]\nmax = -1",
            2,
            "the size leaves out less than 1 MiB",
        ),
        ("[group.lab]\nmax = 1.5", 2, "a size such as"),
        ("[group.lab]\nmax = [1]", 2, "a size such as"),
        ("[group.lab]\nmax = { '0' = '4Q' }", 2, "invalid size '4Q'"),
        (
            "[group.lab]\nmax = { everything = '4G' }",
            2,
            "invalid GPU 'everything'",
        ),
        (
            "[group.lab]\nmax = { GPU- = '4G' }",
            2,
            "invalid GPU 'GPU-'",
        ),
        ("[group.lab]\nwait_timeout = 'soon'", 2, "30s"),
        ("[group.lab]\npressure_timeout = 'no'", 2, "500ms"),
        ("[group.lab]\noom = 'kill'", 2, "kill-largest"),
        ("[group.lab]\ncount_context = 'maybe'", 2, "yes or no"),
        ("[group.lab]\nsuspended.max = '50%'", 2, "host memory"),
        ("[group.lab]\nsuspended.mx = '5G'", 2, "mean suspended.max?"),
        (
            "[group.lab]\nsuspended = '5G'",
            2,
            "unknown key 'suspended'",
        ),
        ("[group.lab]\nsuspend.max = '5G'", 2, "suspended.max"),
        (
            "[defaults]\non_error = 'maybe'",
            2,
            "\"closed\" or \"open\"",
        ),
        ("[[rule]]\nuser = 5\ngroup = 'a'", 2, "a list of texts"),
        ("[[rule]]\nuser = ['']\ngroup = 'a'", 2, "is empty"),
        (
            "[[rule]]\ncgroup = \"a\\nb\"\ngroup = 'a'",
            2,
            "control characters",
        ),
    ] {
        let said = wrong(text);
        let found = said
            .iter()
            .any(|one| one.starts_with(&format!("p.toml:{line}: ")) && one.contains(why));
        assert!(found, "{text}\n{said:#?}");
    }
}
