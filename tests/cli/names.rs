//! Names of groups for a user under a rule: every command gives a name the same meaning.

use crate::roots::on_empty_machine;
use crate::user::Machine;

/// Makes the group `lab/65533` and assigns to it the user of that number, `alice`.
const ASSIGNED: &str = r#"
mkdir -m 755 /run/gpulimit
cat > /run/p.toml <<'END'
[group.lab]
[group."lab/{uid}"]
[[rule]]
user = ["65533", "65532"]
group = "lab/{uid}"
END
admin apply /run/p.toml >/dev/null 2>&1
said() { echo "== $*"; "$@" 2>&1 || echo "status $?"; }
inside() { GPULIMIT_GROUP=$1 alice run sh -c 'echo ${GPULIMIT_GROUP%-*-*}'; }
"#;

#[test]
fn names_under_a_rule_mean_the_same_in_every_command() {
    let Some(machine) = Machine::new() else {
        return;
    };
    const STEPS: &str = r#"
said alice set night max=1G
said alice create night max=4G
said alice create lab/65533/day max=3G
said alice set night max=2G
said alice get night max
said alice show night
said alice get lab/65532 max
said alice run --name evening --max 1G sh -c 'echo $GPULIMIT_GROUP'
said alice run --group night --name late --max 1G sh -c 'echo $GPULIMIT_GROUP'
said alice run --group night sh -c 'echo ${GPULIMIT_GROUP%-*-*}'
said alice run --group lab/65532 true
said alice run --name other true
said inside day
said inside dawn
said alice rm evening
said alice show --names night
said admin create night max=5G
said admin get night max
"#;
    let script = format!("{ASSIGNED}{STEPS}");
    let Some((out, _)) = on_empty_machine(&machine, &script) else {
        return;
    };
    let mut parts = out.split("== ").skip(1);
    let mut expect = |command: &str, answers: &[&str]| {
        let part = parts.next().unwrap_or_default();
        assert!(part.starts_with(command), "{command}\n{out}");
        for answer in answers {
            assert!(part.contains(answer), "{command}: {answer}\n{out}");
        }
    };
    let remedy = "make the group with `gpulimit create lab/65533/night --max SIZE --parents`";
    expect("alice set night", &["no group 'lab/65533/night'", remedy]);
    let made = "\nlab/65533/night: created, max 4GiB";
    expect("alice create night", &[made]);
    expect("alice create lab/65533/day", &["\nlab/65533/day: created"]);
    let set = "\nlab/65533/night: max=2GiB applied";
    expect("alice set night", &[set]);
    expect("alice get night", &["\n2GiB\n"]);
    expect("alice show night", &["lab/65533/night"]);
    // The user can look at groups elsewhere.
    expect("alice get lab/65532", &["\nmax\n"]);
    expect("alice run --name evening", &["\nlab/65533/evening\n"]);
    let late = "\nlab/65533/night/late\n";
    expect("alice run --group night --name", &[late]);
    expect("alice run --group night sh", &["\nlab/65533/night/run\n"]);
    let elsewhere = "'lab/65532' is not below lab/65533; leave out GPULIMIT_GROUP, --group and \
        --name, or name a group below lab/65533";
    expect("alice run --group lab/65532", &[elsewhere, "status 125"]);
    let other = "no group 'lab/65533/other'";
    expect("alice run --name other", &[other]);
    expect("inside day", &["\nlab/65533/day/run\n"]);
    let dawn = "'dawn' means group lab/65533/dawn, which does not exist; \
        make the group with `gpulimit create lab/65533/dawn`";
    expect("inside dawn", &[dawn]);
    expect("alice rm evening", &[]);
    expect("alice show --names night", &["\nlab/65533/night/late\n"]);
    // Root administers the machine, and names groups in full.
    expect("admin create night", &["\nnight: created, max 5GiB"]);
    expect("admin get night", &["\n5GiB\n"]);
}
