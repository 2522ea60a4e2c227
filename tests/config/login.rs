//! Snippets for logins, run by the shells that will run them.

use crate::place::{GPULIMIT, Place, Shell, in_each_shell, may_mount, read, repository, text};
use gpulimit_support::{clean, skip};
use std::fs;
use std::process::Command;

const LIBRARY: &str = "/usr/local/lib/gpulimit/libgpulimit.so";

/// Runs the profile with the controller and a library of the test's own, and returns the variables
/// that it sets.
fn profile(place: &Place, shell: &Shell, variables: &[(&str, &str)]) -> String {
    let library = place.write("libgpulimit.so", "");
    let library = library.to_str().expect("UTF-8");
    let snippet = read("config/login/profile.sh");
    assert!(snippet.contains("/usr/local/bin/gpulimit ") && snippet.contains(LIBRARY));
    let snippet = snippet
        .replace("/usr/local/bin/gpulimit ", &format!("{GPULIMIT} "))
        .replace(LIBRARY, library);
    let path = place.write("profile.sh", &snippet);
    // The script uses only built-in commands, because the library is an empty file.
    let show = format!(
        ". {}; echo \"${{GPULIMIT_GROUP-unset}} ${{LD_PRELOAD-unset}} ${{gpulimit_user-unset}}\"",
        path.display()
    );
    let mut command = shell.command();
    command
        .args(["-euc", &show])
        .env("GPULIMIT_ROOT", place.at("root"))
        .envs(variables.iter().copied());
    let output = command.output().expect("started");
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout).replace(library, "LIBRARY")
}

#[test]
fn the_profile_puts_a_shell_into_its_users_group() {
    let name = Command::new("id").arg("-un").output().expect("started");
    let group = format!("users/{}", text(&name.stdout).trim());
    let preloads = [("", "LIBRARY"), ("other.so", "LIBRARY:other.so")];
    let enters = |shell: &Shell| {
        let place = Place::new();
        assert_eq!(profile(&place, shell, &[]), "unset unset unset\n");
        let made = place.gpulimit(&["create", &group, "max=1G", "--parents"]);
        assert!(made.status.success(), "{made:?}");
        for (before, after) in preloads {
            // The linker complains about a preload that does not exist, and the shell goes on.
            let variables = [("LD_PRELOAD", before)];
            let variables = if before.is_empty() {
                &[][..]
            } else {
                &variables
            };
            assert_eq!(
                profile(&place, shell, variables),
                format!("{group} {after} unset\n")
            );
        }
        // A group that the user has chosen stays.
        let chosen = profile(&place, shell, &[("GPULIMIT_GROUP", "own")]);
        assert_eq!(chosen, "own unset unset\n");
    };
    in_each_shell(enters);
    Shell::new(&["bash"]).iter().for_each(enters);
}

#[test]
fn the_pam_file_has_pams_syntax() {
    let text = read("config/login/pam_env.conf");
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let words = lines
        .iter()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let expected = [
        [
            "LD_PRELOAD",
            "DEFAULT=/usr/local/lib/gpulimit/libgpulimit.so",
        ],
        ["GPULIMIT_GROUP", "DEFAULT=users/@{PAM_USER}"],
    ];
    assert_eq!(words.collect::<Vec<_>>(), expected);
}

/// Runs `su` with gpulimit's lines in place of this machine's PAM rules.
#[test]
fn pam_puts_a_session_into_its_users_group() {
    const SESSION: &str = "mount --bind \"$1\" /etc/pam.d/su && exec su -s /bin/sh daemon -c \
        'echo \"$GPULIMIT_GROUP ${LD_PRELOAD-unset}\"'";
    if !may_mount() {
        return;
    }
    if !fs::exists("/etc/pam.d/su").is_ok_and(|there| there) {
        skip("there is no PAM with su");
        return;
    }
    let place = Place::new();
    let lines = repository("config/login/pam_env.conf");
    let rules = format!(
        "auth sufficient pam_rootok.so\naccount required pam_permit.so\n\
            session required pam_env.so conffile={}\n",
        lines.display()
    );
    let rules = place.write("su", &rules);
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", SESSION, "sh"]).arg(rules);
    let output = clean(&mut command).output().expect("started");
    let said = text(&output.stdout);
    assert_eq!(said, format!("users/daemon {LIBRARY}\n"), "{output:?}");
}
