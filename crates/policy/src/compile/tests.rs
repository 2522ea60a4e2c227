use super::*;
use crate::file;
use crate::rules::{Range, Rule, Target, UnixGroups};
use gpulimit_base::units::Size;
use std::path::Path;

/// A machine with three people and a daemon. Alice, bob and carol are in the unix group `lab`,
/// carol also in `guests`.
struct Machine;

const PEOPLE: [(&str, u32, u32); 9] = [
    ("root", 0, 0),
    ("daemon", 1, 1),
    ("alice", 1000, 1000),
    ("bob", 1001, 100),
    ("carol", 1002, 1002),
    ("burst", 70_003, 103),
    ("José", 70_004, 103),
    ("u1000", 70_005, 103),
    ("bob/x", 70_006, 103),
];

impl Accounts for Machine {
    fn user(&self, name: &str) -> Option<User> {
        self.users().into_iter().find(|user| user.name == name)
    }

    fn unix_group(&self, name: &str) -> Option<UnixGroup> {
        let (gid, members): (u32, &[&str]) = match name {
            "lab" => (100, &["alice", "carol"]),
            "guests" => (101, &["carol", "gone"]),
            "empty" => (102, &[]),
            "odd" => (103, &["alice"]),
            _ => return None,
        };
        Some(UnixGroup {
            name: name.into(),
            gid,
            members: members.iter().map(|name| (*name).into()).collect(),
        })
    }

    fn users(&self) -> Vec<User> {
        let user = |(name, uid, gid): (&str, u32, u32)| User {
            name: name.into(),
            uid,
            gid,
        };
        PEOPLE.map(user).into()
    }

    fn regular(&self) -> Range {
        (1000, 60_000)
    }
}

fn compiled(text: &str) -> (Plan, Vec<Mistake>) {
    compile(&file::parse(Path::new("p.toml"), text), &Machine)
}

#[track_caller]
fn plan(text: &str) -> Plan {
    let (plan, mistakes) = compiled(text);
    assert!(mistakes.is_empty(), "{mistakes:#?}");
    plan
}

fn group<'a>(plan: &'a Plan, name: &str) -> &'a PlannedGroup {
    let found = plan.groups.iter().find(|group| group.name == name);
    found.unwrap_or_else(|| panic!("{name}: {plan:#?}"))
}

fn names(plan: &Plan) -> Vec<&str> {
    plan.groups
        .iter()
        .map(|group| group.name.as_str())
        .collect()
}

#[test]
fn a_template_makes_a_group_for_each_user() {
    let plan = plan(
        r#"
[group.lab]
[group."lab/{user}"]
max = "20%"
[group."lab/{user}/night"]
[[rule]]
unix_group = "lab"
group = "lab/{user}"
"#,
    );
    assert_eq!(
        names(&plan),
        [
            "lab",
            "lab/alice",
            "lab/alice/night",
            "lab/bob",
            "lab/bob/night",
            "lab/carol",
            "lab/carol/night"
        ]
    );
    let alice = group(&plan, "lab/alice");
    assert_eq!((alice.owner, alice.members), (Some(1000), Members::Owner));
    // A member of a group is also charged in the group above.
    assert_eq!(group(&plan, "lab").members, Members::All);
    let rule = &plan.rules.0[0];
    let groups = UnixGroups {
        gids: vec![100],
        members: vec![(1000, 1002)],
    };
    assert_eq!(rule.unix_group, Some(groups));
    let each = [(1000, "lab/alice"), (1001, "lab/bob"), (1002, "lab/carol")];
    assert_eq!(
        rule.target,
        Target::Each(each.map(|(uid, name)| (uid, name.into())).into())
    );
}

#[test]
fn a_rule_for_all_users_makes_groups_for_regular_users() {
    let plan = plan("[group.'u{uid}']\n[[rule]]\nuser = '*'\ngroup = 'u{uid}'\n");
    assert_eq!(names(&plan), ["u1000", "u1001", "u1002"]);
    assert_eq!(plan.rules.0[0].user, [(1000, 60_000)]);
}

#[test]
fn a_template_makes_a_group_for_each_unix_group() {
    let plan =
        plan("[group.'{group}']\n[[rule]]\nunix_group = ['guests', 'lab']\ngroup = '{group}'\n");
    assert_eq!(names(&plan), ["guests", "lab"]);
    assert_eq!(group(&plan, "lab").members, Members::UnixGroup(100));
    let rules: Vec<_> = plan
        .rules
        .0
        .iter()
        .map(|rule| (rule.number, rule.target.clone()))
        .collect();
    let target = |name: &str| Target::Group(name.into());
    assert_eq!(rules, [(1, target("guests")), (1, target("lab"))]);
}

#[test]
fn user_and_unix_group_must_both_hold() {
    let text = "[group.'{user}']\n[[rule]]\nuser = ['bob', 'carol', 'root']\nunix_group = \
                'guests'\ngroup = '{user}'\n";
    assert_eq!(names(&plan(text)), ["carol"]);
}

#[test]
fn a_unix_group_without_members_applies_to_later_members() {
    let plan =
        plan("[group.a]\n[group.'a/{user}']\n[[rule]]\nunix_group = 'empty'\ngroup = 'a/{user}'\n");
    assert_eq!(names(&plan), ["a"]);
    assert_eq!(plan.rules.0[0].target, Target::Each(Vec::new()));
}

#[test]
fn a_stanza_with_a_groups_own_name_overrides_a_template() {
    let plan = plan(
        r#"
[group."{user}"]
max = "20%"
users = ["alice", "bob"]
[group.alice]
max = "40%"
owner = "alice"
members = "@lab"
"#,
    );
    assert_eq!(names(&plan), ["alice", "bob"]);
    let alice = group(&plan, "alice");
    assert_eq!(alice.settings.sizes[0].2, Size::Percent(4000).into());
    assert_eq!(
        (alice.owner, alice.members),
        (Some(1000), Members::UnixGroup(100))
    );
    assert_eq!(
        group(&plan, "bob").settings.sizes[0].2,
        Size::Percent(2000).into()
    );
}

#[test]
fn defaults_apply_to_keys_that_a_group_does_not_set() {
    let plan = plan(
        "[defaults]\nmax = '10%'\non_limit = 'wait'\n[group.a]\n[group.b]\nmax = { '0' = '1G' \
         }\non_limit = 'fail'\n",
    );
    let sizes = |name| {
        group(&plan, name)
            .settings
            .sizes
            .iter()
            .map(|(_, gpu, size)| format!("{} {size}", gpu.value))
            .collect::<Vec<_>>()
    };
    assert_eq!(sizes("a"), ["all 10%"]);
    assert_eq!(sizes("b"), ["0 1GiB"]);
    assert_eq!(group(&plan, "a").settings.options[0].1, "wait");
    assert_eq!(group(&plan, "b").settings.options.len(), 1);
}

#[test]
fn members_are_those_whom_the_rules_put_into_a_group() {
    let plan = plan(
        r#"
[group.a]
[group.b]
owner = "alice"
[group.c]
[group.d]
members = "all"
[group.e]
[[rule]]
user = "alice"
group = "b"
[[rule]]
user = ["root", "bob"]
group = "a"
[[rule]]
unix_group = "guests"
group = "c"
[[rule]]
user = "root"
group = "e"
[[rule]]
container = "*"
group = "d"
"#,
    );
    let expected = [
        ("a", Members::All),
        ("b", Members::Owner),
        ("c", Members::UnixGroup(101)),
        ("d", Members::All),
        ("e", Members::Owner),
    ];
    for (name, members) in expected {
        assert_eq!(group(&plan, name).members, members, "{name}");
    }
}

#[test]
fn a_group_above_groups_of_other_users_admits_all_users() {
    let members = |text: &str| {
        let plan = plan(text);
        let lab = group(&plan, "lab");
        let said = lab.widened.as_ref().map(|at| (at.value.clone(), at.line));
        (lab.members, said)
    };
    let lab = "[group.lab]\nmembers = '@lab'\n";
    let widened = (Members::All, Some(("@lab".to_owned(), 2)));
    for below in [
        "[group.'lab/a']\nowner = 'alice'\n",
        "[group.'lab/a']\nmembers = '@guests'\n",
        "[group.'lab/a']\nmembers = 'all'\n",
    ] {
        assert_eq!(members(&format!("{lab}{below}")), widened, "{below}");
        let unsaid = format!("[group.lab]\n{below}");
        assert_eq!(members(&unsaid), (Members::All, None), "{below}");
    }
    // The users of the group below are members already.
    for below in ["members = '@lab'", "members = 'owner'"] {
        let text = format!("{lab}[group.'lab/a']\n{below}\n");
        assert_eq!(members(&text), (Members::UnixGroup(100), None), "{below}");
    }
}

#[test]
fn contradictions_are_reported() {
    for (text, line, why) in [
        ("[group.'a/b']\n", 1, "add [group.\"a\"]"),
        ("[group.'a b']\n", 1, "invalid group name 'a b'"),
        ("[group.none]\n", 1, "invalid group name 'none'"),
        ("[group.job-1-2]\n", 1, "reserved for groups of single jobs"),
        ("[group.'{users}']\n", 1, "{user}, {uid} or {group}"),
        ("[group.'{user}']\n", 1, "makes no group"),
        ("[group.a]\nusers = 'alice'\n", 2, "'a' is a single group"),
        (
            "[group.a]\nmax = '4G'\nmin = '5G'\n",
            1,
            "min 5GiB above max 4GiB",
        ),
        (
            "[defaults]\nmax = '10%'\n[group.a]\nlow = '20%'\n",
            3,
            "low 20% above max 10%",
        ),
        ("[group.a]\nowner = '{user}'\n", 2, "login name"),
        (
            "[group.a]\nmembers = 'some'\n",
            2,
            "\"owner\", \"all\" or \"@UNIXGROUP\"",
        ),
        (
            "[group.lab]\n[[rule]]\ngroup = 'lap'\n",
            3,
            "did you mean lab?",
        ),
        (
            "[[rule]]\ngroup = 'lab/{user}'\nuser = 'bob'\n",
            2,
            "add [group.\"lab/{user}\"]",
        ),
        ("[[rule]]\ngroup = '{group}'\n", 2, "names no unix group"),
        ("[[rule]]\ngroup = '{who}'\n", 2, "{user}, {uid} or {group}"),
        (
            "[group.a]\n[[rule]]\nuser = ['*', 'bob']\ngroup = 'a'\n",
            3,
            "user = \"*\"",
        ),
        (
            "[group.a]\n[[rule]]\nuser = '*'\ngroup = 'a'\n[[rule]]\nuser = 'bob'\ngroup = 'a'\n",
            5,
            "rule 2 is never reached: rule 1",
        ),
        (
            "[group.a]\nmembers = 'owner'\n[[rule]]\nuser = 'bob'\ngroup = 'a'\n",
            2,
            "rule 1 puts other users into the group",
        ),
        (
            "[group.'{user}{group}']\nusers = 'bob'\n",
            2,
            "names no unix group",
        ),
        (
            "[group.'{user}']\nusers = '4711'\n[group.'{uid}']\nusers = '4711'\n",
            3,
            "both make the group 4711",
        ),
    ] {
        let (_, mistakes) = compiled(text);
        let said: Vec<_> = mistakes.iter().map(Mistake::to_string).collect();
        let found = mistakes
            .iter()
            .any(|one| !one.absent && one.line == line && one.why.contains(why));
        assert!(found, "{text}\n{said:#?}");
        assert!(said.iter().all(|one| one.lines().count() == 1), "{said:#?}");
    }
}

#[test]
fn users_that_the_machine_lacks_are_reported_as_absent() {
    for (text, line, name) in [
        ("[group.a]\nowner = 'dave'\n", 2, "'dave'"),
        ("[group.a]\nmembers = '@nerds'\n", 2, "'nerds'"),
        (
            "[group.a]\n[[rule]]\nuser = ['alice', 'dave']\ngroup = 'a'\n",
            3,
            "'dave'",
        ),
        (
            "[group.a]\n[[rule]]\nunix_group = 'nerds'\ngroup = 'a'\n",
            3,
            "'nerds'",
        ),
    ] {
        let (plan, mistakes) = compiled(text);
        assert_eq!(mistakes.len(), 1, "{mistakes:#?}");
        let one = &mistakes[0];
        assert!(
            one.absent && one.line == line && one.why.contains(name),
            "{one}"
        );
        // A rule whose users do not exist must not match every process.
        let is_bounded = |rule: &Rule| !rule.user.is_empty() || rule.unix_group.is_some();
        assert!(plan.rules.iter().all(is_bounded), "{plan:?}");
    }
}

#[test]
fn people_to_whom_no_rule_applies_are_listed() {
    let left = |text: &str| uncovered(&plan(text).rules, &Machine);
    let rule = |conditions: &str| format!("[group.a]\n[[rule]]\n{conditions}\ngroup = 'a'\n");
    assert_eq!(left(&rule("user = 'alice'")), ["bob", "carol"]);
    assert_eq!(left(&rule("unix_group = 'lab'")), Vec::<String>::new());
    assert_eq!(left(&rule("unix_group = 'guests'")), ["alice", "bob"]);
    assert_eq!(left(&rule("user = '*'")), Vec::<String>::new());
    // These rules match only some programs of each user, so `uncovered` ignores them.
    assert_eq!(left(&rule("executable = '/x'")), Vec::<String>::new());
    let both = rule("executable = '/x'") + "[[rule]]\nuser = 'bob'\ngroup = 'none'\n";
    assert_eq!(left(&both), ["alice", "carol"]);
}

#[test]
fn users_can_be_named_by_number() {
    let plan = plan("[group.'{user}']\n[[rule]]\nuser = ['1000', '4711']\ngroup = '{user}'\n");
    assert_eq!(names(&plan), ["4711", "alice"]);
    assert_eq!(plan.rules.0[0].user, [(1000, 1000), (4711, 4711)]);
}

#[test]
fn a_rule_that_exempts_needs_no_group() {
    let plan = plan("[[rule]]\nuser = 'root'\ngroup = 'none'\n");
    assert_eq!(plan.rules.0[0].target, Target::Exempt);
    assert!(plan.groups.is_empty());
}

/// Returns the users for whom a rule makes groups, with the groups.
fn each(plan: &Plan, rule: usize) -> Vec<(u32, &str)> {
    match &plan.rules.0[rule].target {
        Target::Each(each) => each.iter().map(|(uid, name)| (*uid, &**name)).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_user_named_like_a_group_does_not_get_the_group() {
    let shared = "[group.lab]\n[group.'lab/{user}']\n[group.'lab/burst']\nmax = '40%'\n";
    let rules = "[[rule]]\nunix_group = 'odd'\ncgroup = '*/burst.slice/*'\ngroup = 'lab/burst'\n\
                 [[rule]]\nunix_group = 'odd'\ngroup = 'lab/{user}'\n";
    let below = "[group.'lab/{user}/night']\n";
    let found = plan(&format!("{shared}{below}{rules}"));
    let made = ["lab/alice", "lab/alice/night", "lab/burst", "lab/u1000"];
    assert_eq!(names(&found)[1..5], made);
    assert_eq!(
        each(&found, 1),
        [(1000, "lab/alice"), (70_005, "lab/u1000")]
    );
    let burst = group(&found, "lab/burst");
    assert_eq!(
        (burst.owner, burst.members),
        (None, Members::UnixGroup(103))
    );
    let said: Vec<_> = found.left_out.iter().map(Mistake::to_string).collect();
    assert_eq!(said.len(), 2, "{said:#?}");
    assert!(said[0].contains("p.toml:2: template 'lab/{user}' makes no group for 'José', "));
    assert!(
        said[1].contains("makes no group for 'burst', "),
        "{said:#?}"
    );
    // A stanza for the user names the user as the owner.
    let meant = format!("{shared}owner = '70003'\n{rules}");
    let found = plan(&meant);
    assert!(
        each(&found, 1).contains(&(70_003, "lab/burst")),
        "{found:?}"
    );
    // A user named like a group above does not get it either.
    let above = "[group.burst]\n[group.'{user}']\n[[rule]]\nuser = 'burst'\ngroup = '{user}'\n";
    let found = plan(above);
    assert_eq!((names(&found), each(&found, 0)), (vec!["burst"], vec![]));
}

#[test]
fn all_whose_names_cannot_be_groups_are_named_and_the_rest_is_planned() {
    let found = plan(
        "[group.'{user}']\n[[rule]]\nuser = ['José', 'alice', 'bob', 'bob/x']\n\
         group = '{user}'\n",
    );
    // A name with a slash would be that of a group below another user's.
    assert_eq!(
        (names(&found), each(&found, 0)),
        (vec!["alice", "bob"], vec![(1000, "alice"), (1001, "bob")])
    );
    let said = found.left_out[0].to_string();
    assert!(
        said.contains("'José', 'bob/x'") && said.contains("{uid}"),
        "{said}"
    );
}

#[test]
fn a_template_gives_no_group_to_two_users() {
    // The name of one user is what another template makes of the number of another.
    let found = plan(
        "[group.'{user}']\n[group.'u{uid}']\n[[rule]]\nuser = ['u1000', 'bob']\ngroup = '{user}'\n\
         [[rule]]\nuser = ['alice', 'bob']\ngroup = 'u{uid}'\n",
    );
    assert_eq!(names(&found), ["bob", "u1001"]);
    assert_eq!(each(&found, 0), [(1001, "bob")]);
    assert_eq!(each(&found, 1), [(1001, "u1001")]);
    assert_eq!(found.left_out.len(), 2);
}

#[test]
fn a_unix_group_named_like_a_group_gets_no_group_and_no_gpu() {
    let text = "[group.'{group}']\n[group.guests]\n[[rule]]\nunix_group = ['guests', 'lab']\n\
                group = '{group}'\n[[rule]]\nuser = 'bob'\ngroup = 'guests'\n";
    let found = plan(text);
    assert_eq!(names(&found), ["guests", "lab"]);
    assert_eq!(each(&found, 0), []);
    assert_eq!(found.rules.0[1].target, Target::Group("lab".into()));
    assert_eq!(found.rules.0[2].target, Target::Group("guests".into()));
    let meant = text.replace("[group.guests]\n", "[group.guests]\nmembers = '@guests'\n");
    let (found, _) = compiled(&meant);
    assert_eq!(found.rules.0[0].target, Target::Group("guests".into()));
}
