//! The completions of shells: verbs, options, the names of groups, and in bash also keys.

use crate::groups::sizes;
use clap::Command;
use clap_complete::Shell;
use gpulimit_limits::OptionKey;

/// Returns the names of the shells, and their scripts.
pub fn scripts() -> [(&'static str, String); 3] {
    [
        ("bash", bash(script(Shell::Bash))),
        ("zsh", zsh(script(Shell::Zsh))),
        ("fish", fish(script(Shell::Fish))),
    ]
}

/// Returns clap's script.
fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut visible(), "gpulimit", &mut script);
    without_hidden_option(&String::from_utf8_lossy(&script))
}

/// Removes `doctor`'s hidden option `--preloaded` from the script, because users never pass it.
fn without_hidden_option(script: &str) -> String {
    let script = script.replace(" --preloaded", "");
    let lines = script.split_inclusive('\n');
    lines.filter(|line| !line.contains("preloaded")).collect()
}

/// Returns the definition of gpulimit's command line without hidden verbs.
fn visible() -> Command {
    let all = super::command();
    let verbs = all.get_subcommands().filter(|verb| !verb.is_hide_set());
    let mut visible = Command::new("gpulimit")
        .version(env!("CARGO_PKG_VERSION"))
        .disable_help_subcommand(true)
        .subcommands(verbs.cloned());
    // Only then do the verbs have their options: see [`super::later`].
    visible.build();
    visible
}

/// Returns the verbs that take the names of existing groups.
fn verbs() -> Vec<String> {
    let command = visible();
    let takes_groups = |verb: &&Command| {
        let mut places = verb.get_positionals();
        verb.get_name() != "create" && places.any(|place| is_groups(place.get_id().as_str()))
    };
    let verbs = command.get_subcommands().filter(takes_groups);
    verbs.map(|verb| verb.get_name().to_owned()).collect()
}

fn is_groups(argument: &str) -> bool {
    matches!(argument, "group" | "groups")
}

/// Appends a bash function that completes group names, keys, values, and the command of `run`.
fn bash(script: String) -> String {
    let command = visible();
    // The value of an option such as --watch=1s is never a word of its own.
    let takes_value = |arg: &&clap::Arg| {
        let apart = arg.get_action().takes_values() && !arg.is_require_equals_set();
        apart && !arg.is_positional()
    };
    let mut values: Vec<String> = Vec::new();
    for arg in command
        .get_subcommands()
        .flat_map(Command::get_arguments)
        .filter(takes_value)
    {
        values.extend(arg.get_long().map(|long| format!("--{long}")));
        values.extend(arg.get_short().map(|short| format!("-{short}")));
    }
    values.sort_unstable();
    values.dedup();
    let groups: Vec<String> = verbs()
        .iter()
        .map(|verb| match verb.as_str() {
            "rm" => "rm:*".to_owned(),
            verb => format!("{verb}:0"),
        })
        .collect();
    let keys: Vec<&str> = gpulimit_limits::names().collect();
    let words = OptionKey::ALL.map(|key| (key, sizes::about(key).0.join(" ")));
    let words = words.into_iter().filter(|(_, words)| !words.is_empty());
    let words: Vec<String> = words
        .map(|(key, words)| format!("{key}) values='{words}' ;;"))
        .collect();
    script
        + &include_str!("places.bash")
            .replace("@VALUES@", &values.join(" "))
            .replace("@GROUPS@", &groups.join("|"))
            .replace("@KEYS@", &keys.join(" "))
            .replace("@WORDS@", &words.join("\n            "))
}

/// Makes zsh complete the names of groups, in place of the file names that clap's script completes.
fn zsh(script: String) -> String {
    let named = |line: &str| {
        let groups = [
            "':group -- ",
            "'::group -- ",
            "'*::groups -- ",
            "'--group=[",
        ];
        match line.trim_end().strip_suffix(":_default' \\") {
            Some(start)
                if groups
                    .iter()
                    .any(|group| start.trim_start().starts_with(group)) =>
            {
                format!("{start}:_gpulimit_groups' \\\n")
            }
            _ => format!("{line}\n"),
        }
    };
    let groups = "\n_gpulimit_groups() {\n    \
                  local -a groups=(${(f)\"$(gpulimit show --names 2>/dev/null)\"})\n    \
                  compadd -a groups\n}\n";
    let (head, rest) = script.split_once('\n').unwrap_or((&script, ""));
    format!(
        "{head}\n{groups}{}",
        rest.lines().map(named).collect::<String>()
    )
}

/// Makes fish complete the names of groups.
fn fish(script: String) -> String {
    script
        + &format!(
            "complete -c gpulimit -n \"__fish_seen_subcommand_from {}\" \
             -f -a \"(gpulimit show --names 2>/dev/null)\"\n\
             complete -c gpulimit -n \"__fish_seen_subcommand_from run\" \
             -l group -x -a \"(gpulimit show --names 2>/dev/null)\"\n",
            verbs().join(" ")
        )
}
