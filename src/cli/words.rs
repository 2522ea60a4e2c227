//! Words that are not gpulimit's own: those of other tools and of earlier versions.
//!
//! A word with one meaning is rewritten before the command line is parsed. For another one, an
//! error prints the right command. No help mentions these words. Each key is an option, too: the
//! verbs define those of sizes, and the others become settings here.

use super::Cli;
use crate::groups::sizes::is_setting;
use crate::machine::program;
use crate::words::text::quoted;
use clap::{Command, CommandFactory};
use gpulimit_base::units::Extent;
use gpulimit_limits::{Key, names};
use std::ffi::{OsStr, OsString};

/// Returns what a word means: a verb; an option, in a verb that has it; the beginning of settings
/// (`=`), in a verb that takes settings; or an error (`` ` ``) in the place of a verb.
fn meaning(word: &str) -> Option<&'static str> {
    Some(match word {
        "status" | "stats" | "list" => "show",
        "logs" => "events",
        "--memory" | "--limit" | "-m" => "--max",
        "--gpu" => "--device",
        "--wait" => "on_limit=wait wait_timeout=",
        "tree" => "`gpulimit tree` is now `gpulimit show --tree`",
        "ls" => "`gpulimit ls` is now `gpulimit show --names`",
        "check" => "`gpulimit check` is now `gpulimit apply --check`",
        "stop" => {
            "`gpulimit kill GROUP` ends programs, `gpulimit suspend GROUP` frees their memory"
        }
        "man" => "packages have manual pages: `man gpulimit-run`, or `gpulimit run --help`",
        "completions" => "packages have completions of shells: `scripts/package tar` makes them",
        "k8s-device-plugin" => "this is now the program `gpulimit-k8s-device-plugin`",
        "rename" => "a group keeps its name: `gpulimit create NEW --max SIZE`, `gpulimit rm OLD`",
        _ => return None,
    })
}

/// Returns these arguments in gpulimit's own words. The error prints the right command.
pub fn own(given: Vec<OsString>) -> Result<Vec<OsString>, String> {
    let word = |at: usize| given.get(at).map_or("", text);
    let (first, asked) = (word(0), word(usize::from(word(0) == "help")));
    if let Some(instead) = meaning(asked).filter(|meaning| meaning.contains('`')) {
        return Err(instead.to_owned());
    }
    let cli = Cli::command();
    let verb = |name: &str| {
        let mut verb = cli.find_subcommand(name)?.clone();
        verb.build();
        Some(verb)
    };
    if let Some(verb) = verb(meaning(first).unwrap_or(first)) {
        return rewritten(&verb, given.get(1..).unwrap_or_default());
    }
    // A program, or an option of `run`, where the verb should be.
    let run = verb("run").ok_or_else(|| first.to_owned())?;
    let is_program = first.contains(['/', '.']) || program::find(OsStr::new(first)).is_some();
    let is_option = option(&run, parts(first).0).is_some();
    if !is_option && (first.starts_with('-') || !is_program) {
        return Ok(given);
    }
    let mut words = rewritten(&run, &given)?;
    if !words.iter().any(|word| parts(text(word)).0 == "--max") {
        words.splice(1..1, ["--max", "4G"].map(OsString::from));
    }
    let words = quoted_all(words.iter());
    Err(format!(
        "'{first}' is no command of gpulimit: use `gpulimit {words}`"
    ))
}

fn quoted_all<'a>(words: impl Iterator<Item = &'a OsString>) -> String {
    let words: Vec<String> = words.map(|word| quoted(word)).collect();
    words.join(" ")
}

fn text(word: &OsString) -> &str {
    word.to_str().unwrap_or_default()
}

/// Returns the verb's own option that a name means; `None` for options without values.
fn option<'a>(verb: &Command, name: &'a str) -> Option<&'a str> {
    let has = |name: &&str| {
        let long = name.strip_prefix("--");
        long.is_some() && verb.get_opts().any(|option| option.get_long() == long)
    };
    let own = Some(name).filter(has);
    own.or_else(|| meaning(name).filter(has))
}

/// Returns the beginning of the settings that an option means: each key is an option, too.
fn setting(name: &str) -> Option<String> {
    let key = name.strip_prefix("--")?.replace(['-', '.'], "_");
    let key = names().find(|own| own.replace('.', "_") == key);
    let meant = meaning(name).filter(|meaning| meaning.ends_with('='));
    key.map(|key| format!("{key}="))
        .or(meant.map(str::to_owned))
}

/// Returns the words after the name of a verb in gpulimit's own words, after that name.
fn rewritten(verb: &Command, given: &[OsString]) -> Result<Vec<OsString>, String> {
    let is_run = verb.get_name() == "run";
    let has_settings = verb.get_positionals().any(|it| it.get_id() == "changes");
    let options = given.iter().map(|word| option(verb, parts(text(word)).0));
    let options: Vec<&str> = options.flatten().collect();
    let (mut done, mut settings) = (vec![OsString::from(verb.get_name())], Vec::new());
    let mut left = given.iter().peekable();
    while let Some(word) = left.next() {
        let (name, inline) = parts(text(word));
        let next = left.peek().map(|next| text(next));
        let value = inline.or(next).unwrap_or_default();
        let setting = has_settings.then(|| setting(name)).flatten();
        // The command, or the options of Python.
        let is_rest = is_run && !name.starts_with('-') && !is_setting(text(word))
            || ["-m", "-c"].contains(&name)
                && !is_size(value)
                && options.contains(&"--interpreter");
        if is_run && is_size(name) && next == Some("--") {
            done.extend(["--max".into(), word.clone()]);
        } else if is_run
            && is_size(name)
            && done.len() == 1
            && next.is_some()
            && program::find(word).is_none()
        {
            let command = quoted_all(left);
            return Err(format!(
                "'{name}' is no program: use `gpulimit run --max {name} -- {command}`"
            ));
        } else if word == "--" || is_rest {
            done.extend((word != "--" && !text(word).is_empty()).then(|| "--".into()));
            done.push(word.clone());
            break;
        } else if let Some(own) = option(verb, name).or(setting.as_deref()) {
            check(own, value)?;
            let pair = value.split_once('=');
            let pair = pair.filter(|_| own == "--max" && !options.contains(&"--device"));
            let rest = left.next_if(|_| inline.is_none());
            match (pair, rest) {
                _ if own.ends_with('=') => {
                    settings.extend(format!("{own}{value}").split(' ').map(OsString::from));
                }
                (Some((gpu, size)), _) => {
                    done.extend(["--device", gpu, own, size].map(OsString::from));
                }
                (None, Some(rest)) => done.extend([own.into(), rest.clone()]),
                (None, None) if inline.is_none() => done.push(own.into()),
                (None, None) => done.push(format!("{own}={value}").into()),
            }
        } else {
            check(name, value)?;
            done.push(word.clone());
        }
    }
    // The name of the group may come after an option, but comes before settings.
    done.extend(left.cloned().chain(settings));
    Ok(done)
}

/// Splits `--max=4G` and `-m4G`.
fn parts(word: &str) -> (&str, Option<&str>) {
    match (word.strip_prefix("-m"), word.split_once('=')) {
        (Some(size), _) if is_size(size) => ("-m", Some(size)),
        (_, Some((name, value))) => (name, Some(value)),
        _ => (word, None),
    }
}

/// Returns whether a word can only be a size: a number with a unit.
fn is_size(word: &str) -> bool {
    let is_digit = |c: char| c.is_ascii_digit();
    word.starts_with(is_digit) && !word.ends_with(is_digit) && word.parse::<Extent>().is_ok()
}

/// Fails for a size such as 0.5.
fn check(name: &str, value: &str) -> Result<(), String> {
    let key = name.trim_start_matches('-').replace('-', "_");
    let is_size = Key::ALL.iter().any(|it| it.name() == key);
    let part = value.parse().ok();
    let part = part.filter(|part: &f64| is_size && 0.0 < *part && *part < 1.0);
    part.map_or(Ok(()), |part| {
        let (percent, mebibytes) = (part * 100.0, (part * 1024.0).round());
        Err(format!(
            "{name} {value} has no unit: {percent}% or {mebibytes}M?"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn own_words(given: &[String]) -> Result<String, String> {
        let own = own(given.iter().map(OsString::from).collect())?;
        let own: Vec<_> = own.iter().map(|word| word.to_string_lossy()).collect();
        Ok(own.join(" "))
    }

    #[test]
    fn words_with_one_meaning_are_accepted() {
        for (given, own) in [
            ("run 4G -- a", "run --max 4G -- a"),
            ("run --stat 25% -- a", "run --stat --max 25% -- a"),
            ("run --memory 4G -- a", "run --max 4G -- a"),
            ("run --memory=4G a -- b", "run --max=4G -- a -- b"),
            ("run -m4G --name -m a", "run --max=4G --name -m -- a"),
            (
                "run -m 4G --gpu 1 a -m 2",
                "run --max 4G --device 1 -- a -m 2",
            ),
            ("run --limit -2G -- a", "run --max -2G -- a"),
            ("run --max 0=4G -- a", "run --device 0 --max 4G -- a"),
            ("run max=4G a", "run max=4G -- a"),
            (
                "run --interpreter p --max 1G -m a",
                "run --interpreter p --max 1G -- -m a",
            ),
            (
                "run --interpreter p -m 1G -c a",
                "run --interpreter p --max 1G -- -c a",
            ),
            (
                "run --interpreter p -m 1G a -m b",
                "run --interpreter p --max 1G -- a -m b",
            ),
            (
                "create a --oom none --limit 1G",
                "create a --max 1G oom=none",
            ),
            ("set a --wait=5m", "set a on_limit=wait wait_timeout=5m"),
            (
                "create --on-limit wait a --wait-timeout=5m low=1G",
                "create a low=1G on_limit=wait wait_timeout=5m",
            ),
            (
                "set a --suspended-max 64G --suspended.max max --keep_free 1G",
                "set a suspended.max=64G suspended.max=max keep_free=1G",
            ),
            ("status -- a", "show -- a"),
            ("list a", "show a"),
            ("stats a --gpu 0", "show a --device 0"),
            ("logs --json", "events --json"),
        ] {
            assert_eq!(own_words(&words(given)).as_deref(), Ok(own), "{given}");
        }
    }

    #[test]
    fn other_words_stay_for_the_parser() {
        for (given, own) in [
            ("run --maxx 4G a", "run --maxx -- 4G a"),
            ("run max -- a", "run -- max -- a"),
            ("run 50 -- a", "run -- 50 -- a"),
            ("run -- 4G -- a", "run -- 4G -- a"),
            ("run -max 4G -- a", "run -max --max 4G -- a"),
            (
                "run --max 0=4G --device 1 -- a",
                "run --max 0=4G --device 1 -- a",
            ),
            (
                "run --wait 30s --max 4G -- a",
                "run --wait 30s --max 4G -- a",
            ),
            ("show --memory 4G --watch a", "show --memory 4G --watch a"),
            ("rm -m a", "rm -m a"),
            ("shwo a", "shwo a"),
            ("--version", "--version"),
            ("", ""),
        ] {
            assert_eq!(own_words(&words(given)).as_deref(), Ok(own), "{given}");
        }
    }

    #[test]
    fn an_error_prints_the_right_command() {
        for (given, right) in [
            ("sh a.sh", "`gpulimit run --max 4G -- sh a.sh`"),
            ("./a -x", "`gpulimit run --max 4G -- ./a -x`"),
            ("--max 2G a; b", "`gpulimit run --max 2G -- 'a;' b`"),
            ("-m2G --stat a", "`gpulimit run --max=2G --stat -- a`"),
            ("run 4G a -x", "`gpulimit run --max 4G -- a -x`"),
            ("run --max 0.5 a", "50% or 512M?"),
            ("run max=0.25 a", "25% or 256M?"),
            ("run --keep-free 0.1 a", "10% or 102M?"),
            ("set a --high=0.1", "10% or 102M?"),
            ("rename a b", "`gpulimit create NEW --max SIZE`"),
            ("tree", "`gpulimit show --tree`"),
            ("stop a", "`gpulimit kill GROUP`"),
        ] {
            let said = own_words(&words(given)).expect_err(given);
            assert!(said.contains(right), "{given}: {said}");
        }
    }

    /// Returns a word with one mistake of each kind and at each place.
    fn mistyped(word: &str) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        let letters = "amx1G=-% ".chars();
        for at in 0..=word.len() {
            let (left, right) = word.split_at(at);
            let rest = right.get(1..).unwrap_or_default();
            all.extend([left.to_owned(), format!("{left}{rest}")]);
            for letter in letters.clone() {
                all.extend([
                    format!("{left}{letter}{right}"),
                    format!("{left}{letter}{rest}"),
                ]);
            }
            if let (Some(first), Some(second)) = (right.get(..1), right.get(1..2)) {
                all.insert(format!("{left}{second}{first}{}", &right[2..]));
            }
        }
        all.remove(word);
        all
    }

    /// Returns whether these arguments start the program `./PROGRAM`, or another one of this
    /// machine, without a hard limit.
    fn starts_without_limit(given: &[String]) -> bool {
        let Ok(own) = own(given.iter().map(OsString::from).collect()) else {
            return false;
        };
        let own = std::iter::once("gpulimit".into()).chain(own);
        let Ok(all) = Cli::command().try_get_matches_from(own) else {
            return false;
        };
        let Some(("run", run)) = all.subcommand() else {
            return false;
        };
        let command = run.get_many::<OsString>("command").into_iter().flatten();
        let command: Vec<_> = command.map(|word| word.to_string_lossy()).collect();
        let settings = command.iter().take_while(|word| is_setting(word)).count();
        let (settings, command) = command.split_at(settings);
        let is_limit = |size: Extent| size.to_string() != "max";
        let by_option = run.get_one::<Extent>("max").copied().is_some_and(is_limit);
        let by_setting = settings.iter().any(|word| {
            let size = word.strip_prefix("max=").map(str::parse);
            // `run` refuses a wrong size.
            size.is_some_and(|size| size.map_or(true, is_limit))
        });
        // `run` takes `--` away that follows settings.
        let mut command = command.iter();
        let is_end = |word: &&_| !settings.is_empty() && **word == "--";
        let command = command.find(|word| !is_end(word)).map(|word| &**word);
        let is_there = |path: PathBuf| path.is_file();
        let starts = run.contains_id("interpreter")
            || command == Some("./PROGRAM")
            || command.is_some_and(|word| program::find(OsStr::new(word)).is_some_and(is_there));
        // `run` refuses to start a program if no option and no setting asks for a limit.
        let asks = |name: &&str| run.contains_id(name);
        let is_refused =
            settings.is_empty() && !["max", "high", "low", "min", "wait"].iter().any(asks);
        starts && !by_option && !by_setting && !is_refused
    }

    #[test]
    fn no_mistyped_word_starts_a_program_without_a_limit() {
        for line in [
            "run --max 1G -- ./PROGRAM -m 2 -- b",
            "run --max=1G -- ./PROGRAM",
            "run max=1G -- ./PROGRAM",
            "run 1G -- ./PROGRAM",
            "run -m 1G -- ./PROGRAM",
            "run -m1G ./PROGRAM",
            "run --memory 1G -- ./PROGRAM",
            "run --max 0=1G -- ./PROGRAM",
            "run --gpu 0 --max 1G -- ./PROGRAM",
            "run --device 0 --wait 10s --max 1G --stat -- ./PROGRAM",
            "run --interpreter ./PROGRAM --max 1G -m 2",
            "run --interpreter ./PROGRAM -m 1G -c 2",
        ] {
            let line = words(line);
            assert!(!starts_without_limit(&line), "{line:?}");
            let end = line
                .iter()
                .position(|word| word == "./PROGRAM")
                .expect("it is there");
            let mut wrong: Vec<Vec<String>> = Vec::new();
            for at in 0..end.max(5).min(line.len()) {
                let with = |words: &[&str]| {
                    let words = words.iter().map(|word| (*word).to_owned());
                    let mut line = line.clone();
                    line.splice(at..=at, words);
                    line
                };
                wrong.push(with(&[]));
                wrong.push(with(&[&line[at], &line[at]]));
                for word in mistyped(&line[at]) {
                    wrong.push(with(&[&word]));
                    if let Some((left, right)) = word.split_once(' ') {
                        wrong.push(with(&[left, right]));
                    }
                }
                let mut swapped = line.clone();
                swapped.swap(at, at + 1 - usize::from(at + 1 == line.len()));
                wrong.push(swapped);
            }
            for wrong in wrong {
                assert!(!starts_without_limit(&wrong), "{wrong:?}");
            }
        }
    }
}
