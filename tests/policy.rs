//! The policy file and its effects: `apply` with and without `--check`, the record of the groups
//! that `apply` made, and the rules that it writes.

#[path = "groups/place.rs"]
mod place;

use gpulimit_base::device::DeviceId;
use gpulimit_base::units::Size;
use gpulimit_group::{Access, Member, Members};
use gpulimit_limits::{Key, LimitSet, Selector};
use gpulimit_policy::rules::{FILE, Rules, Source, Target};
use gpulimit_policy::{compile, file};
use gpulimit_support::{clean, is_root, may_mount, text};
use place::Place;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const GPULIMIT: &str = env!("CARGO_BIN_EXE_gpulimit");

impl Place {
    fn policy(&self) -> PathBuf {
        self.0.join("p.toml")
    }

    fn run(&self, verb: &str, policy: &str, more: &[&str]) -> Output {
        fs::write(self.policy(), policy).expect("written");
        let mut command = Command::new(GPULIMIT);
        command.args(verb.split(' ')).arg(self.policy()).args(more);
        clean(&mut command).env("GPULIMIT_ROOT", self.root_path());
        command.output().expect("started")
    }

    /// Returns the output of an `apply` that must succeed.
    #[track_caller]
    fn applied(&self, policy: &str, more: &[&str]) -> String {
        let output = self.run("apply", policy, more);
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout)
    }

    /// Returns the errors of a command that must fail.
    #[track_caller]
    fn refused(&self, verb: &str, policy: &str) -> String {
        let output = self.run(verb, policy, &[]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_eq!(text(&output.stdout), "");
        text(&output.stderr)
    }

    fn groups(&self) -> Vec<String> {
        let groups = self.root().groups().expect("groups");
        groups.iter().map(|group| group.name().to_owned()).collect()
    }

    fn max(&self, name: &str) -> Option<Size> {
        let group = self.root().group(name).expect("a group");
        let rules = group.limits().expect("limits").rules().expect("rules");
        rules.get(Selector::All, Key::Max)
    }

    fn rules(&self) -> Option<Rules> {
        let owner = fs::metadata(self.root_path()).expect("a root").uid();
        let root = self.root_path();
        Rules::load(&Source { root, owner }).expect("rules")
    }
}

/// Returns the name and the id of the user who runs the test.
fn me() -> (String, u32) {
    let output = Command::new("id").arg("-un").output().expect("id");
    let uid = fs::metadata("/proc/self").expect("/proc").uid();
    (text(&output.stdout).trim().into(), uid)
}

const TREE: &str = r#"
[group.lab]
max = "80%"
[group."lab/a"]
max = "4G"
on_limit = "wait"
[group."lab/b"]
max = { all = "2G", "GPU-00112233-4455-6677-8899-aabbccddeeff" = "1G" }
"#;

#[test]
fn apply_makes_a_tree_once() {
    let place = Place::new();
    let (name, _) = me();
    let expected = format!(
        "lab: created, max 80%, owner {name}, members owner\n\
         lab/a: created, max 4GiB, on_limit wait, owner {name}, members owner\n\
         lab/b: created, max 2GiB, max 1GiB of GPU-00112233-4455-6677-8899-aabbccddeeff, \
         owner {name}, members owner\n"
    );
    let dry = place.applied(TREE, &["--dry-run"]);
    let planned = expected.replace("created", "would be created");
    assert_eq!(dry, format!("{planned}dry run: nothing was changed\n"));
    assert!(!place.root_path().exists(), "nothing was made");
    assert_eq!(place.applied(TREE, &[]), expected);
    assert_eq!(place.groups(), ["lab", "lab/a", "lab/b"]);
    assert_eq!(place.applied(TREE, &[]), "nothing to change\n");
    assert_eq!(place.applied(TREE, &["--dry-run"]), "nothing to change\n");
}

#[test]
fn apply_changes_and_reports_differences() {
    let place = Place::new();
    place.applied(TREE, &[]);
    // The group differs by hand and in the file.
    let by_hand = |limits: &mut LimitSet| limits.set(Selector::All, Key::High, Size::Percent(5000));
    let lab = place.root().group("lab").expect("a group");
    lab.write_limits(by_hand).expect("written");
    let other = TREE
        .replace("4G", "5G")
        .replace("wait", "fail")
        .replace("1G", "1.5G");
    let expected = "lab: high 50% -> unset\n\
                    lab/a: max 4GiB -> 5GiB\n\
                    lab/a: on_limit wait -> fail\n\
                    lab/b: max of GPU-00112233-4455-6677-8899-aabbccddeeff 1GiB -> 1536MiB\n";
    assert_eq!(place.applied(&other, &[]), expected);
    assert_eq!(place.max("lab/a"), Some(Size::Bytes(5 << 30)));
    assert_eq!(place.applied(&other, &[]), "nothing to change\n");
}

#[test]
fn apply_removes_only_groups_that_it_made() {
    let place = Place::new();
    place.applied(TREE, &[]);
    let root = place.root();
    for name in ["own", "lab/own"] {
        root.create(name, &LimitSet::all(Size::Max)).expect("made");
    }
    let less = "[group.lab]\nmax = '80%'\n[group.own]\nmax = '1G'\n";
    let expected = "own: max max -> 1GiB\nlab/b: removed\nlab/a: removed\n";
    assert_eq!(place.applied(less, &[]), expected);
    assert_eq!(place.groups(), ["lab", "lab/own", "own"]);
    // A group that existed before is changed, but not recorded as made by `apply`.
    let said = place.applied("", &[]);
    assert!(
        said.starts_with("lab: kept, group 'lab' has groups below it, such as lab/own"),
        "{said}"
    );
    root.remove("lab/own").expect("removed");
    assert_eq!(place.applied("", &[]), "lab: removed\n");
    assert_eq!(place.applied("", &[]), "nothing to change\n");
    assert_eq!(place.groups(), ["own"]);
}

#[test]
fn apply_removes_a_group_once_it_is_unused() {
    let place = Place::new();
    place.applied(TREE, &[]);
    let member = Member::join(&place.root(), "lab/a").expect("joined");
    let less = "[group.lab]\nmax = '80%'\n";
    let said = place.applied(less, &[]);
    assert!(
        said.contains("lab/b: removed\nlab/a: kept, programs run in group 'lab/a'"),
        "{said}"
    );
    drop(member);
    assert_eq!(place.applied(less, &[]), "lab/a: removed\n");
}

#[test]
fn apply_forgets_a_group_that_was_removed_by_hand() {
    let place = Place::new();
    place.applied("[group.a]\nmax = '1G'\n", &[]);
    place.root().remove("a").expect("removed");
    assert_eq!(place.applied("", &[]), "nothing to change\n");
    place
        .root()
        .create("a", &LimitSet::all(Size::Max))
        .expect("made");
    assert_eq!(place.applied("", &[]), "nothing to change\n");
    assert_eq!(place.groups(), ["a"]);
}

#[test]
fn apply_continues_after_a_killed_controller() {
    let place = Place::new();
    place.applied(TREE, &[]);
    // The earlier controller was killed with the record written, one group half made, and the rules
    // half written.
    fs::write(
        place.root_path().join(".managed"),
        "gpulimit-managed 1\nlab\nlab/a\nlab/b\nlab/c\n",
    )
    .expect("written");
    fs::remove_file(place.root().group("lab/b").expect("a group").limits_path()).expect("removed");
    fs::write(place.root_path().join(".rules.new"), "half").expect("written");
    let policy = format!("{TREE}\n[[rule]]\nuser = '*'\ngroup = 'lab'\n");
    let said = place.applied(&policy, &[]);
    assert!(
        said.contains("lab/b: created") && said.contains("rules: 1 written"),
        "{said}"
    );
    assert!(!place.root_path().join(".rules.new").exists());
    assert_eq!(place.applied(&policy, &[]), "nothing to change\n");
}

#[test]
fn two_controllers_do_not_apply_at_once() {
    let place = Place::new();
    place.applied(TREE, &[]);
    let other = place.root().hold_alone(".apply.lock").expect("held");
    let said = place.refused("apply", "");
    assert!(said.contains("another `gpulimit apply`"), "{said}");
    drop(other);
    place.applied("", &[]);
}

#[test]
fn a_full_file_system_loses_no_groups_or_rules() {
    if !may_mount() {
        return;
    }
    // The policies are one with one group and a rule, one with too many groups for the file system,
    // and the same with room.
    const STEPS: &str = "mkdir $1/root && mount -t tmpfs -o mode=755,size=600k tmpfs $1/root \
        && export GPULIMIT_ROOT=$1/root && shift \
        && $1 apply $2 >/dev/null && sum=$(cat $GPULIMIT_ROOT/.rules | cksum) \
        && if $1 apply $3; then echo it fits; exit 9; fi \
        && [ \"$sum\" = \"$(cat $GPULIMIT_ROOT/.rules | cksum)\" ] && $1 show a >/dev/null \
        && echo nothing is lost \
        && mount -o remount,size=400m $GPULIMIT_ROOT && $1 apply $3 | tail -1 && $1 apply $3 \
        && $1 apply $2 | grep -c removed";
    let place = Place::new();
    let few = place.0.join("few.toml");
    let many = place.0.join("many.toml");
    let rule = "[[rule]]\nuser = 'root'\ngroup = 'a'\n";
    fs::write(&few, format!("[group.a]\nmax = '1G'\n{rule}")).expect("written");
    let groups: String = (0..60).map(|n| format!("[group.b{n}]\n")).collect();
    let more = "on_error = 'open'\n";
    fs::write(
        &many,
        format!("{groups}[group.a]\nmax = '1G'\n{rule}{more}"),
    )
    .expect("written");
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", STEPS, "sh"]).args([
        &place.0,
        Path::new(GPULIMIT),
        &few,
        &many,
    ]);
    let output = clean(&mut command).output().expect("started");
    let said = text(&output.stdout);
    assert_eq!(
        said, "nothing is lost\nrules: 1 written\nnothing to change\n60\n",
        "{output:?}"
    );
    assert!(
        text(&output.stderr).to_lowercase().contains("no space"),
        "{output:?}"
    );
}

#[test]
fn a_damaged_record_is_reported() {
    let place = Place::new();
    place.applied(TREE, &[]);
    for damaged in ["", "gpulimit-managed 1\n../etc\n", "gpulimit-managed 2\n"] {
        fs::write(place.root_path().join(".managed"), damaged).expect("written");
        let said = place.refused("apply", "");
        assert!(said.contains(".managed is damaged"), "{said}");
    }
    assert_eq!(place.groups().len(), 3);
}

#[test]
fn an_invalid_policy_changes_nothing() {
    let place = Place::new();
    place.applied(TREE, &[]);
    for (policy, says) in [
        (
            "[group.lab]\nmux = '1G'\n",
            "p.toml:2: unknown key 'mux' in group 'lab', did you mean max?",
        ),
        (
            "[group.'lab/x']\n",
            "p.toml:1: group 'lab/x' is below group 'lab'",
        ),
        ("[group.lab]\nmax = { '7' = '1G' }\n", "p.toml:2: "),
        (
            "[group.lab]\nowner = 'no such user'\n",
            "p.toml:2: no user 'no such user'",
        ),
        ("group = {", "p.toml:1: "),
    ] {
        let said = place.refused("apply", policy);
        assert!(
            said.contains(says) && said.contains("has 1 mistake: nothing was changed"),
            "{said}"
        );
    }
    assert_eq!(place.applied(TREE, &[]), "nothing to change\n");
    fs::remove_file(place.policy()).expect("removed");
    let mut command = Command::new(GPULIMIT);
    clean(command.arg("apply").arg(place.policy()));
    let output = command.output().expect("started");
    assert!(text(&output.stderr).contains("cannot read"), "{output:?}");
}

#[test]
fn check_finds_all_mistakes_and_changes_nothing() {
    let place = Place::new();
    let said = place.refused(
        "apply --check",
        "[group.a]\nmax = 'x'\nmin = 'y'\n[group.b]\nkey = 1\n",
    );
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 4, "{said}");
    for (line, at) in lines.iter().zip([2, 3, 5]) {
        assert!(line.contains(&format!("p.toml:{at}: ")), "{said}");
    }
    assert!(lines[3].ends_with("has 3 mistakes"), "{said}");
    let good = place.run("apply --check", TREE, &[]);
    assert!(good.status.success(), "{good:?}");
    assert!(
        text(&good.stdout).contains("ok, groups: 3, rules: 0"),
        "{good:?}"
    );
    // The policy may be valid on another machine.
    let there = place.run("apply --check", "[group.a]\nowner = 'no such user'\n", &[]);
    assert!(
        there.status.success() && text(&there.stderr).contains("another machine"),
        "{there:?}"
    );
    let (out, errors) = (text(&there.stdout), text(&there.stderr));
    assert!(errors.starts_with("gpulimit: warning: "), "{errors}");
    assert!(
        !out.contains("ok") && out.contains("rejects the policy"),
        "{out}"
    );
    assert!(!place.root_path().exists());
}

#[test]
fn limits_and_options_without_effect_cause_warnings() {
    let place = Place::new();
    let policy = "[group.lab]\nmax = '4G'\noom = 'kill-largest'\n[group.'lab/a']\nmax = '8G'\n\
        [group.'lab/b']\noom = 'kill-group'\non_limit = 'wait'\n";
    for verb in ["apply --check", "apply"] {
        let output = place.run(verb, policy, &[]);
        assert!(output.status.success(), "{output:?}");
        let said = text(&output.stderr);
        let lines: Vec<&str> = said.lines().filter(|it| it.contains("warning")).collect();
        assert_eq!(lines.len(), 2, "{said}");
        let above = "p.toml:4: warning: max=8GiB is above max=4GiB of group lab";
        assert!(lines[0].contains(above), "{said}");
        let without = "p.toml:6: warning: on_limit=wait oom=kill-group has no effect";
        assert!(lines[1].contains(without), "{said}");
    }
}

#[test]
fn members_without_effect_cause_a_warning() {
    let place = Place::new();
    let policy = "[group.lab]\nmembers = '@root'\n[group.'lab/a']\nmembers = 'all'\n\
        [group.'lab/b']\nmembers = 'all'\n";
    for verb in ["apply --check", "apply"] {
        let output = place.run(verb, policy, &[]);
        assert!(output.status.success(), "{output:?}");
        let said = text(&output.stderr);
        let why = "p.toml:2: warning: members = \"@root\" has no effect, because groups below are";
        assert_eq!(said.matches(why).count(), 1, "{said}");
    }
}

#[test]
fn rules_are_readable_by_all_and_removed_with_the_last_one() {
    let place = Place::new();
    let (name, uid) = me();
    let policy = format!(
        "[group.'{{user}}']\nmax = '20%'\n[[rule]]\nuser = '{name}'\ngroup = '{{user}}'\n\
            on_error = 'open'\n"
    );
    let said = place.applied(&policy, &[]);
    assert!(said.ends_with("rules: 1 written\n"), "{said}");
    let mode = |name: &str| {
        fs::metadata(place.root_path().join(name))
            .expect("there")
            .permissions()
            .mode()
            & 0o7777
    };
    assert_eq!(mode(FILE), 0o644);
    let rules = place.rules().expect("rules");
    assert_eq!(rules.0[0].target, Target::Each(vec![(uid, name)]));
    assert_eq!(place.applied(&policy, &[]), "nothing to change\n");
    // The rules were changed by hand.
    fs::write(place.root_path().join(FILE), "").expect("written");
    assert_eq!(place.applied(&policy, &[]), "rules: 1 written\n");
    fs::set_permissions(
        place.root_path().join(FILE),
        fs::Permissions::from_mode(0o666),
    )
    .expect("changed");
    assert_eq!(place.applied(&policy, &[]), "rules: 1 written\n");
    assert_eq!(mode(FILE), 0o644);
    let said = place.applied("", &[]);
    assert!(said.contains("rules: removed"), "{said}");
    assert_eq!(place.rules(), None);
}

#[test]
fn a_name_that_cannot_be_a_group_stops_nothing_else() {
    let place = Place::new();
    // Every system has the unix groups `root` and `daemon`.
    let policy = "[group.'{group}']\nmax = '1G'\nunix_group = ['root', 'daemon']\n\
                  [group.daemon]\nmax = '2G'\n";
    let output = place.run("apply", policy, &[]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = text(&output.stderr);
    assert!(
        said.contains("p.toml:1: warning: template '{group}' makes no group for 'daemon', "),
        "{said}"
    );
    assert_eq!(place.groups(), ["daemon", "root"]);
    assert_eq!(place.max("daemon"), Some(Size::Bytes(2 << 30)));
    assert!(place.run("apply --check", policy, &[]).status.success());
}

#[test]
fn json_reports_the_same_changes() {
    let place = Place::new();
    let read = |text: String| serde_json::from_str::<Value>(&text).expect("JSON");
    let (name, _) = me();
    let made = read(place.applied("[group.a]\nmax = '1G'\n", &["--json"]));
    assert_eq!(made["changed"], true);
    let group = json!({
        "name": "a",
        "action": "created",
        "limits": "max 1GiB",
        "owner": name,
        "members": "owner",
    });
    assert_eq!(made["groups"], json!([group]));
    let changed = read(place.applied(
        "[group.a]\nmax = '2G'\nmin = '1G'\n",
        &["--json", "--dry-run"],
    ));
    assert_eq!(changed["dry_run"], true);
    let changes = json!([
        { "key": "max", "gpu": null, "old": "1GiB", "new": "2GiB" },
        { "key": "min", "gpu": null, "old": null, "new": "1GiB" },
    ]);
    assert_eq!(changed["groups"][0]["changes"], changes);
    let same = read(place.applied("[group.a]\nmax = '1G'\n", &["--json"]));
    assert_eq!(
        (&same["changed"], &same["groups"], &same["rules"]),
        (&json!(false), &json!([]), &Value::Null)
    );
}

#[test]
fn apply_sets_owners_and_members() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let policy = "[group.a]\n[group.'a/b']\nowner = 'daemon'\n[group.'a/b/c']\nowner = 'daemon'\n";
    assert_eq!(
        place.applied(policy, &[]),
        "a: created, no limit, owner root, members all\n\
         a/b: created, no limit, owner daemon, members owner\n\
         a/b/c: created, no limit, owner daemon, members owner\n"
    );
    let access = |name: &str| {
        place
            .root()
            .group(name)
            .expect("a group")
            .access()
            .expect("known")
    };
    let uid = access("a/b").owner.expect("an owner");
    assert_ne!(uid, 0);
    assert_eq!(place.applied(policy, &[]), "nothing to change\n");
    let group = place.root().group("a/b").expect("a group");
    assert_eq!(fs::metadata(group.below_path()).expect("there").uid(), uid);
    // The access was changed by hand, or a kill left it half changed.
    let wide = Access {
        owner: Some(0),
        members: Members::All,
    };
    group.give_access(wide).expect("given");
    let said = place.applied(policy, &[]);
    assert_eq!(
        said,
        "a/b: owner root -> daemon\na/b: members all -> owner\n"
    );
    std::os::unix::fs::chown(group.below_path(), Some(0), None).expect("given");
    assert_eq!(place.applied(policy, &[]), "a/b: owner root -> daemon\n");
    assert_eq!(place.applied(policy, &[]), "nothing to change\n");
    // The owner stays while the group contains a group of the user's, which root could then neither
    // change nor remove there.
    let roots = policy.replace("daemon", "root");
    let output = place.run("apply", &roots, &[]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("'a/b' cannot get another owner, because group 'a/b/c'"),
        "{said}"
    );
    // The other group is changed as the policy says.
    assert_eq!(text(&output.stdout), "a: members all -> owner\n");
    assert_eq!(place.applied(policy, &[]), "a: members owner -> all\n");
    place.root().remove("a/b/c").expect("removed");
    place.applied(&roots, &[]);
    assert_eq!(access("a/b/c").owner, Some(0));
    assert_eq!(place.applied(&roots, &[]), "nothing to change\n");
}

// The shipped policies; tests/programs applies them on simulated machines.

fn examples() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/policy");
    let files = fs::read_dir(folder).expect("a folder");
    let files: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    assert!(files.len() >= 4, "{files:?}");
    files
}

#[test]
fn every_shipped_policy_is_valid() {
    for path in examples() {
        let mut command = Command::new(GPULIMIT);
        clean(command.args(["apply", "--check"]).arg(&path));
        let output = command.output().expect("started");
        assert!(output.status.success(), "{output:?}");
    }
}

/// A machine with some users.
struct Machine;

impl compile::Accounts for Machine {
    fn user(&self, name: &str) -> Option<compile::User> {
        self.users().into_iter().find(|user| user.name == name)
    }

    fn unix_group(&self, name: &str) -> Option<compile::UnixGroup> {
        let members = vec!["alice".to_owned()];
        (name == "lab").then(|| compile::UnixGroup {
            name: name.into(),
            gid: 100,
            members,
        })
    }

    fn users(&self) -> Vec<compile::User> {
        let user = |(uid, name): (u32, &str)| compile::User {
            name: name.into(),
            uid,
            gid: uid,
        };
        [(0, "root"), (1000, "alice"), (1001, "bob")]
            .map(user)
            .into()
    }

    fn regular(&self) -> (u32, u32) {
        (1000, 60_000)
    }
}

#[test]
fn randomly_changed_policies_cause_no_panic() {
    let mut generator = gpulimit_support::random();
    let mut random = |below: usize| generator.usize(..below);
    let texts = examples()
        .into_iter()
        .map(|path| fs::read_to_string(path).expect("readable"));
    let texts: Vec<String> = texts.chain([TREE.to_owned()]).collect();
    let mut wrong = 0;
    for _ in 0..4_000 {
        let mut text: Vec<char> = texts[random(texts.len())].chars().collect();
        for _ in 0..=random(4) {
            let at = random(text.len());
            match random(3) {
                0 => drop(text.remove(at)),
                1 => text.insert(
                    at,
                    ['"', '[', ']', '{', '}', '=', '/', '\n', '*', 'é', '9', '%'][random(12)],
                ),
                _ => text.truncate(at.max(1)),
            }
            if text.is_empty() {
                break;
            }
        }
        let text: String = text.into_iter().collect();
        let (_, mistakes) = compile::compile(&file::parse(Path::new("p.toml"), &text), &Machine);
        wrong += usize::from(!mistakes.is_empty());
        let lines = text.lines().count().max(1) + 1;
        for mistake in mistakes {
            assert!((1..=lines).contains(&mistake.line), "{mistake}\n{text}");
            assert_eq!(mistake.to_string().lines().count(), 1, "{mistake}\n{text}");
        }
    }
    assert!(wrong > 1_000, "{wrong}");
}

#[test]
fn check_reports_each_mistake_once() {
    let place = Place::new();
    let policy = r#"
[group."bad name"]
usr = "x"
[group."x/{user}"]
users = ["root", "daemon"]
min = "30%"
max = "20%"
[[rule]]
group = "nowhere"
[[rule]]
user = "no such user"
group = "gone"
[[rule]]
user = "daemon"
group = "{who}"
"#;
    let said = place.refused("apply --check", policy);
    let expected = [
        "p.toml:2: invalid group name 'bad name'",
        "p.toml:3: unknown key 'usr'",
        "p.toml:4: group 'x/{user}' has min 30% above max 20%",
        "p.toml:4: group 'x/{user}' is below group 'x'",
        "p.toml:8: rule 1 has no condition",
        "p.toml:9: rule 1 names the group 'nowhere'",
        "p.toml:12: rule 2 names the group 'gone'",
        "p.toml:15: unknown placeholder in '{who}'",
        "has 8 mistakes",
    ];
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), expected.len(), "{said}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.contains(expected), "{expected}\n{said}");
    }
}

#[test]
fn check_and_apply_warn_of_suspicious_values() {
    let place = Place::new();
    let policy = "[group.a]\nmax = 20\n[group.b]\nmax = '4G'\nhigh = '5G'\n";
    for verb in ["apply --check", "apply"] {
        let output = place.run(verb, policy, &[]);
        let said = text(&output.stderr);
        assert!(output.status.success(), "{output:?}");
        let expected = [
            "p.toml:1: warning: max=20 is 20 bytes, less than any program needs: \
             did you mean max=20G?",
            "p.toml:3: warning: high=5GiB is above max=4GiB",
        ];
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), expected.len(), "{said}");
        for (line, expected) in lines.iter().zip(expected) {
            assert!(line.contains(expected), "{said}");
        }
    }
}

/// A machine with a user database of the test's own, whose users are alice and bob.
const PEOPLE: &str = r#"
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$1"
cp -a /etc "$1/etc"
mkdir -m 755 "$1/run" "$1/run/gpulimit"
rm -f "$1/etc/ld.so.preload"
sed -i -E '/^[^:]*:[^:]*:[1-9][0-9]{3,4}:/d' "$1/etc/passwd"
printf 'alice:x:2001:2001::/:/bin/sh\nbob:x:2002:2002::/:/bin/sh\n' >> "$1/etc/passwd"
mount --bind "$1/etc" /etc
mount --bind "$1/run" /run
printf '[group.a]\n[[rule]]\nuser = "alice"\ngroup = "a"\n' > /etc/p.toml
set +e
for verb in 'apply --check /etc/p.toml' 'apply /etc/p.toml' doctor 'doctor --user alice'; do
    echo "== $verb"
    $2 $verb
done
echo /usr/lib/gpulimit/libgpulimit.so > /etc/ld.so.preload
printf '[[rule]]\nuser = "*"\ngroup = "none"\n' >> /etc/p.toml
echo == all
$2 apply /etc/p.toml
$2 doctor --user alice | grep -v 'names /usr/lib'
"#;

#[test]
fn policies_that_are_not_enforced_cause_warnings() {
    if !may_mount() {
        return;
    }
    let place = Place::new();
    let mut command = Command::new("unshare");
    command
        // Both streams go to one pipe, which keeps their order.
        .args(["-m", "sh", "-c", &format!("exec 2>&1\n{PEOPLE}"), "sh"])
        .arg(&place.0)
        .arg(GPULIMIT);
    let output = clean(&mut command).output().expect("started");
    let said = text(&output.stdout);
    let (said, all) = said.split_once("== all\n").expect("both halves");
    let mut parts = said.split("== ").skip(1);
    let mut part = |verb: &str| {
        let part = parts.next().unwrap_or_default();
        assert!(part.starts_with(verb), "{said}");
        part.to_owned()
    };
    let left = "no rule limits the programs of these users: bob";
    let unknown = "does not name the library";
    let (check, apply) = (part("apply --check"), part("apply"));
    assert!(check.contains(left) && !check.contains(unknown), "{said}");
    assert!(apply.contains(left) && apply.contains(unknown), "{said}");
    let (doctor, user) = (part("doctor"), part("doctor --user"));
    let missing = "warning  system-wide  the library is not in /etc/ld.so.preload: \
        the policy's rules hold only";
    for (one, rule) in [(&doctor, left), (&user, "alice is assigned to a by rule 1")] {
        assert!(one.contains(missing) && one.contains(rule), "{said}");
        assert!(!one.contains("Limits can be applied.\n"), "{said}");
    }
    assert!(
        !all.contains("warning: ") && !all.contains("warning  rules"),
        "{all}"
    );
    assert!(!all.contains(missing), "{all}");
}

/// A machine whose policy file is in force, or not, for several reasons.
const IN_FORCE: &str = r#"
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$1"
cp -a /etc "$1/etc"
mkdir -m 755 "$1/run" "$1/run/gpulimit" "$1/etc/gpulimit"
mount --bind "$1/etc" /etc
mount --bind "$1/run" /run
policy=/etc/gpulimit/gpulimit.toml
look() {
    echo "== $1"
    $gpulimit doctor --user daemon | grep ' policy '
    setpriv --reuid 40001 --regid 40001 --clear-groups $gpulimit doctor | grep ' policy '
}
gpulimit=$2
look none
printf '[group.a]\nmax = "1G"\n[[rule]]\nuser = "root"\ngroup = "a"\n' > $policy
look boot
$gpulimit apply >/dev/null 2>&1
look applied
chmod 600 $policy
look private
chmod 644 $policy
$gpulimit set a --max 2G >/dev/null
look set
printf 'on_error = "open"\n' >> $policy
look edited
$gpulimit apply >/dev/null 2>&1
$gpulimit rm a >/dev/null
look removed
printf '[group.bin]\n[group."{user}"]\n[[rule]]\nuser = "bin"\ngroup = "{user}"\n' > $policy
$gpulimit apply >/dev/null 2>&1
look left-out
printf 'mux\n' >> $policy
look broken
printf '\377' > $policy
look binary
"#;

#[test]
fn doctor_says_when_a_policy_is_not_in_force() {
    if !may_mount() || !is_root() {
        return;
    }
    let place = Place::new();
    let mut command = Command::new("unshare");
    command
        .args(["-m", "sh", "-c", &format!("exec 2>&1\n{IN_FORCE}"), "sh"])
        .arg(&place.0)
        .arg(GPULIMIT);
    let output = clean(&mut command).output().expect("started");
    let said = text(&output.stdout);
    let off = "policy       /etc/gpulimit/gpulimit.toml is not in force: ";
    // Root asks `doctor --user`, and the user asks `doctor`.
    let broken = "`gpulimit apply` changes nothing";
    let expected = [
        ("none", vec![]),
        ("boot", [off; 4].into()),
        ("applied", vec!["is in force"]),
        ("private", vec![]),
        ("set", vec!["warning  policy", "is in force"]),
        ("edited", vec![off, "warning  policy", off]),
        ("removed", [off; 2].into()),
        ("left-out", ["makes no group for 'bin'"; 2].into()),
        ("broken", [broken; 2].into()),
        ("binary", [broken; 2].into()),
    ];
    let parts = said.split("== ").skip(1);
    for (part, (name, expected)) in parts.zip(&expected) {
        let lines: Vec<&str> = part.lines().collect();
        assert_eq!(lines[0], *name, "{said}");
        assert_eq!(lines.len() - 1, expected.len(), "{said}");
        for (line, expected) in lines[1..].iter().zip(expected) {
            assert!(line.contains(expected), "{expected}: {said}");
        }
    }
    assert!(said.contains("== binary"), "{said}");
}

#[test]
fn limits_by_a_full_uuid_need_no_driver() {
    let place = Place::new();
    place.applied(TREE, &[]);
    let id: DeviceId = "GPU-00112233-4455-6677-8899-aabbccddeeff"
        .parse()
        .expect("a UUID");
    let limits = place
        .root()
        .group("lab/b")
        .expect("a group")
        .limits()
        .expect("limits");
    assert_eq!(limits.bounds(&id, 80 << 30).max, 1 << 30);
}
